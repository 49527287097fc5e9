# A container runtime for the tests; SETTINGS stand above this text. It refuses what a real one would.
import json
import os
import subprocess
import sys
from pathlib import Path

STATE = Path(SETTINGS["state"])  # noqa: F821
VALUELESS = ("--rm",)
NAMED = ("--name", "--entrypoint")
KNOWN = (
    "--device",
    "--group-add",
    "--ipc",
    "--shm-size",
    "--cap-add",
    "--security-opt",
    "--publish",
    "--volume",
    "--env",
    "--gpus",
)


def fail(message, code=125):
    sys.stderr.write(f"Error: {message}\n")
    sys.exit(code)


def parse(words):
    options = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in NAMED:
            value = value if equals else words.pop(0)
        elif name not in VALUELESS and not (name in KNOWN and equals):
            fail(f"unknown flag: {word}")
        options.setdefault(name, []).append(value)
    return options, words


def run(words):
    options, (name, *command) = parse(words)
    if name != SETTINGS["image"]:  # noqa: F821
        fail(f"{name}: image not known")
    python = SETTINGS["python"]  # noqa: F821
    entry = options["--entrypoint"][0]
    if python is None:
        fail(f'exec: "{entry}": executable file not found', 127)
    binaries = STATE / "bin"
    binaries.mkdir(exist_ok=True)
    link = binaries / "python3"
    if not link.exists():
        link.symlink_to(python)
    places = []
    for volume in options.get("--volume", []):
        host, inside, *_mode = volume.split(":")
        if not Path(host).is_dir():
            fail(f"no folder {host} to mount")
        places.append((inside, host))
    # A container starts with the image's environment, and what --env gives.
    environment = {"PATH": f"{binaries}:/usr/bin:/bin", "HOME": os.environ["HOME"]}
    for pair in options.get("--env", []):
        key, equals, value = pair.partition("=")
        environment[key] = value if equals else os.environ[key]
    for inside, host in places:
        if not inside.startswith(host):
            command = [word.replace(inside, host) for word in command]
            environment = {key: value.replace(inside, host) for key, value in environment.items()}
    process = subprocess.Popen([binaries / entry if entry == "python3" else entry, *command], env=environment)
    if "--name" in options:
        (STATE / options["--name"][0]).write_text(str(process.pid))
    sys.exit(process.wait())


def main():
    words = sys.argv[1:]
    with (STATE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    if words[:2] == ["image", "inspect"]:
        if not (STATE / "pulled").exists() or words[2] != SETTINGS["image"]:  # noqa: F821
            fail(f"No such image: {words[2]}", 1)
        sys.stdout.write(json.dumps([{"Id": "sha256:b", "RepoDigests": [SETTINGS["digest"]]}]))  # noqa: F821
    elif words[0] == "pull":
        if words[1] != SETTINGS["image"]:  # noqa: F821
            fail(f"manifest unknown: {words[1]}", 1)
        (STATE / "pulled").touch()
    elif words[0] == "run":
        run(words[1:])
    elif words[:2] == ["rm", "--force"]:
        (STATE / words[2]).unlink(missing_ok=True)
    elif words[0] == "version":
        sys.stdout.write("27.3.1\n")
    else:
        fail(f"unknown command {words}")


main()
