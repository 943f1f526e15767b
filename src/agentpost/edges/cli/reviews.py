"""`review`: what the owners of capabilities should look into."""

from typing import Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient, path_of

__all__ = ["review_app"]

review_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="What the owners of capabilities should look into."
)

IdArgument = Annotated[str, typer.Argument(help="The id of the review.")]


@review_app.command("list", epilog="Example: [bold]agentpost review list --capability docs.summarize[/bold]")
def list_reviews(
    capability: Annotated[str | None, typer.Option("--capability", "-c", help="Only those of one capability.")] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The open reviews of the mesh, the oldest first: one for each cause."""
    query = {} if capability is None else {"capability_id": capability}
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/reviews", query)
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (
            each["reviewId"],
            escape(each["capabilityId"]),
            escape(each["failureClass"]),
            escape(f"{each['delegationSkillVersion']} / {each['executorSkillVersion']}"),
            str(len(each["sampleCorrIds"])),
            each["createdAt"],
        )
        for each in found
    ]
    names = ("review", "capability", "failure", "delegation / executor", "samples", "since")
    print_table("Reviews", names, rows, numbers=(4,))


@review_app.command(epilog="Example: [bold]agentpost review show rev_01KK…[/bold]")
def show(review_id: IdArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """One open review, with the conversations that show what went wrong: `agentpost trace` tells each of them."""
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(path_of("ansible", "reviews", review_id))
    if output is Format.JSON:
        print_json(found)
        return
    item = found["item"]
    rows = [
        ("review", item["reviewId"]),
        ("capability", item["capabilityId"]),
        ("failure", item["failureClass"]),
        ("delegation skill", item["delegationSkillVersion"]),
        ("executor skill", item["executorSkillVersion"]),
        ("since", item["createdAt"]),
        ("cases seen here", str(found["casesHere"])),
        *(("conversation", corr_id) for corr_id in item["sampleCorrIds"]),
    ]
    print_table("Review", ("", ""), [(name, escape(value)) for name, value in rows])


@review_app.command(epilog="Example: [bold]agentpost review close rev_01KK…[/bold]")
def close(review_id: IdArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Close a review: somebody looked into it. The coordinator's gateway does it; a new case opens a new one."""
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post(
        path_of("ansible", "reviews", review_id, "close")
    )
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(escape(f"{done['reviewId']} is closed"), highlight=False)
