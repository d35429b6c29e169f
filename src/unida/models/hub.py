"""timm's weights on the Hugging Face hub: in the hub's own cache, or downloaded into it. Without torch.

The cache is where every program of the hub has it (HF_HOME and HF_HUB_CACHE move it). What is in it needs no
connection. A download is written beside its place and moved there when it is whole: nothing half is ever found.
"""

from pathlib import Path
from typing import NamedTuple

from unida.errors import UserError

FILES = ("model.safetensors", "pytorch_model.bin")  # how timm looks for them
SECONDS = 5.0  # to wait for the hub's first answer


class HubWeights(NamedTuple):
    repository: str
    revision: str | None = None  # commit, branch or tag; by default what is newest, or was when it was downloaded


class Download(NamedTuple):
    """A file that is on the hub and not in the cache."""

    file: str
    size: int | None  # in bytes


class NotOnTheHub(Exception):
    """Why the hub gives no file, in words for the end of a sentence."""


def in_cache(weights: HubWeights) -> Path | None:
    import huggingface_hub

    for file in FILES:
        found = huggingface_hub.try_to_load_from_cache(weights.repository, file, revision=weights.revision)
        if isinstance(found, str):
            return Path(found)
    return None


def look_up(weights: HubWeights) -> Download:
    """Ask the hub for the file, once and with a short timeout: its own download would retry for most of a minute."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise NotOnTheHub("they are not in the hub's cache, and HF_HUB_OFFLINE forbids a download")
    for file in FILES:
        url = huggingface_hub.hf_hub_url(weights.repository, file, revision=weights.revision)
        try:
            size = huggingface_hub.get_hf_file_metadata(url, timeout=SECONDS).size
        except EntryNotFoundError:
            continue
        except RevisionNotFoundError as error:
            raise NotOnTheHub(f"{weights.repository} has no revision '{weights.revision}' on the hub") from error
        except RepositoryNotFoundError as error:
            raise NotOnTheHub(f"the hub has no {weights.repository}, or it is not public") from error
        except Exception as error:  # its HTTP stack has no common base class across versions
            status = getattr(getattr(error, "response", None), "status_code", None)
            answer = f"the hub answered with status {status}" if status else "no connection"
            raise NotOnTheHub(f"{answer} ({huggingface_hub.constants.ENDPOINT})") from error
        return Download(file, size)
    raise NotOnTheHub(f"{weights.repository} has none of {', '.join(FILES)} on the hub")


def download(weights: HubWeights, file: str) -> Path:
    """The file, from the hub into its cache. Any error means that it is not there."""
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(weights.repository, file, revision=weights.revision))
    except Exception as error:  # of any type, as above
        raise NotOnTheHub(f"the download failed, {one_line(error)}") from error


def revision_of(path: Path) -> str:
    """The commit that a file in the cache is of: it lies in …/snapshots/COMMIT/."""
    return path.parent.name


def refuse_damaged(path: Path, sha256: str) -> None:
    """A large file lies in the cache under its own sha256, as the hub gave it."""
    name = path.resolve().name
    if len(name) == len(sha256) and name != sha256:
        raise damaged(path, f"sha256 {sha256[:12]}… instead of {name[:12]}…")


def damaged(path: Path, why: str) -> UserError:
    folder = path.parents[2]  # of the repository: deleting the file alone would leave its content there
    return UserError(f"{path} is damaged ({why}): delete the folder {folder}, then it is downloaded again")


def one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": .")
