"""`docs` and `errors`: what the code says of itself."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentpost.edges.cli.output import Format, FormatOption, exit_code, print_json, print_table, print_text, stdout
from agentpost.protocol.errors import MEANINGS, Code, Refusal

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: [bold]agentpost docs --out reference[/bold]")(docs)
    app.command(epilog="Example: [bold]agentpost errors no_route[/bold]")(errors)


def docs(
    page: Annotated[
        str | None, typer.Argument(help="One page, to be printed; without it they are listed.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write all pages there, as Markdown.", show_default=False),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The reference pages, made from the code: commands, http, tools, configuration, errors."""
    # They start a gateway and load what it takes, and all commands; no other one should wait for that.
    from agentpost.edges.cli.app import make_app
    from agentpost.edges.reference.pages import PAGES, make_page, write_pages

    command_line = typer.main.get_command(make_app())
    if out is not None:
        written = [str(path) for path in write_pages(out, command_line)]
        print_json({"written": written}) if output is Format.JSON else print_text("\n".join([*written, ""]))
    elif page is None:
        rows = [{"page": name, "about": what} for name, what in PAGES.items()]
        if output is Format.JSON:
            print_json(rows)
        else:
            print_table("Reference pages", ("page", "about"), [(row["page"], row["about"]) for row in rows])
    else:
        text = make_page(page, command_line)
        print_json({"page": page, "text": text}) if output is Format.JSON else print_text(f"{text}\n")


def errors(
    code: Annotated[str | None, typer.Argument(help="One code; all of them without it.", show_default=False)] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every code that a refusal can have, what it means, and what to do about it."""
    wanted = [found for found in MEANINGS if code in (None, found.value)]
    if not wanted:
        raise Refusal(Code.NOT_FOUND, f"there is no error code {code}", hint="Run `agentpost errors` to see them all.")
    rows = [_row(each) for each in wanted]
    if output is Format.JSON:
        print_json(rows)
    elif code is not None:
        row = rows[0]
        stdout.print(f"[bold]{row['code']}[/bold]: {row['meaning']}", highlight=False)
        stdout.print(f"  {row['hint']}", highlight=False)
        stdout.print(f"  [dim]HTTP status {row['status']}, exit code {row['exitCode']}[/dim]", highlight=False)
    else:
        columns = ("code", "HTTP", "exit", "what it means", "what to do")
        print_table("Error codes", columns, [tuple(str(each) for each in row.values()) for row in rows], numbers=(1, 2))


def _row(code: Code) -> dict[str, Any]:
    meaning = MEANINGS[code]
    return {
        "code": code.value,
        "status": meaning.status,
        "exitCode": exit_code(Refusal(code, "")),
        "meaning": meaning.what,
        "hint": meaning.hint,
    }
