"""Where the data files that come with fidelity lie."""

from pathlib import Path

from fidelity.errors import UsageError


def data_dir(name: str) -> Path:
    """Folder of shipped files, `name` being "prompts" or "configs".

    An installed wheel carries them as fidelity/data/NAME; in a source checkout they are top-level folders.
    Raises UsageError when neither is there.
    """
    package = Path(__file__).resolve().parent
    places = (package / "data" / name, package.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise UsageError(
        f"the folder '{name}' that comes with fidelity is missing (looked in {places[0]} and {places[1]})",
        hint="the installation is incomplete: install fidelity again",
    )
