"""As much of `systemctl --user` as the pages use: it runs what the unit says, as systemd would."""

import configparser
import os
import shlex
import subprocess
import sys
from pathlib import Path


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--user"]
    if words == ["daemon-reload"]:
        return
    if words[:2] != ["enable", "--now"]:
        sys.exit(f"systemctl: not known here: {words}")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment] - names in a unit have capitals
    home = os.environ["HOME"]
    if not unit.read(Path(home) / f".config/systemd/user/{words[2]}.service"):
        sys.exit(f"systemctl: there is no unit {words[2]}")
    command = shlex.split(unit["Service"]["ExecStart"].replace("%h", home))
    os.umask(int(unit["Service"]["UMask"], 8))
    with Path(home, "journal").open("wb") as journal:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=journal, stderr=journal, start_new_session=True)


if __name__ == "__main__":
    main()
