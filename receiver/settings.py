"""Typed settings. Their defaults and their documentation are in `settings.yaml`, which is read when first needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from receiver.errors import SettingsError, detects_nothing
from receiver.quantities import duration, seconds

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from _typeshed import StrPath

_S = TypeVar("_S", "ReceiverSettings", "StoreSettings")
_LARGEST_MARGIN = 1000
_LONGEST_WAIT_SECS = 86_400
_SHORTEST_ROTATION_SECS = 0.001
_LIKELY_MILLIS = 10_000
"""An expiry of at least this many seconds is doubted if it is a multiple of 1,000, as hours and days mostly aren't."""
_SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL")
_MOST = 10**12
"""The largest value of any setting: far beyond use, and as seconds still within 64 bits of microseconds."""


_OWN_HINT = "the variable RECEIVER_SETTINGS names this file; it is written as the package's settings.yaml, such as bridge: {max_tries: 5}"


def default(section: str, name: str) -> Any:
    """The default of a setting: from the file that `RECEIVER_SETTINGS` names, otherwise from `settings.yaml`."""
    return _sections()[section][name]


@cache
def _sections() -> dict[str, Any]:
    packaged = _read(_packaged_file())
    own = os.environ.get("RECEIVER_SETTINGS")
    return _overlaid(packaged, _read(Path(own), hint=_OWN_HINT), (), own) if own else packaged


def _packaged_file() -> Path | Traversable:
    from importlib.resources import files  # the package may be in a zip file, as on Spark's executors

    packaged = files("receiver").joinpath("settings.yaml")
    # In a checkout the file is at the top of the repository, in an installed wheel inside the package.
    return packaged if packaged.is_file() else Path(__file__).resolve().parents[1] / "settings.yaml"


def _read(file: Path | Traversable, hint: str | None = None) -> dict[str, Any]:
    import yaml  # here, because `import receiver` must stay light

    try:
        text = file.read_text(encoding="utf-8")
        _refuse_repeated(yaml.compose(text, yaml.SafeLoader))
        sections = yaml.safe_load(text)
    # PyYAML doesn't wrap errors of making a value: of `!!int x`, `!!bool x`, the date 2024-13-45, deep brackets.
    except (OSError, TypeError, ValueError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise SettingsError(f"can't read the settings in {file}: {_reason(error)}", hint=hint) from error
    if not isinstance(sections, dict | None):
        raise SettingsError(f"{file} must hold sections of settings, as in the settings.yaml of the package", hint=hint)
    return sections or {}


def _reason(error: Exception) -> str:
    """The problem with a file, on one line, with the number of its line if YAML knows it."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1} isn't YAML: {getattr(error, 'problem', None) or 'it is broken'}"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def _refuse_repeated(node: Any) -> None:
    """Refuse a name that occurs twice in one mapping of a YAML document: the loader would silently take the last."""
    # An empty file has no node. Only mappings are searched, as no setting is a list.
    pairs = node.value if getattr(node, "id", None) == "mapping" else []
    names = set()
    for name, value in pairs:
        if not isinstance(name.value, str):
            raise TypeError(f"line {name.start_mark.line + 1} has a list or a mapping for a name")
        if name.value in names:
            raise ValueError(f"{name.value!r:.80} stands there twice, again in line {name.start_mark.line + 1}")
        names.add(name.value)
        _refuse_repeated(value)


def _overlaid(under: dict[str, Any], over: dict[str, Any], above: tuple[str, ...], file: str) -> dict[str, Any]:
    """The settings `under`, some of them replaced by those of the file, `over`."""
    merged = dict(under)
    for name, value in over.items():
        path = *above, str(name)
        if name not in under:
            raise SettingsError(f"{file}: there is no setting {'.'.join(path):.80}", hint=_nearest(path))
        if not isinstance(under[name], dict):
            merged[name] = value
        elif isinstance(value, dict | None):  # None: the whole section is commented out
            merged[name] = _overlaid(under[name], value or {}, path, file)
        else:
            raise SettingsError(f"{file}: {'.'.join(path)} must hold settings by their names, not {value!r:.80}")
    return merged


def _nearest(path: tuple[str, ...]) -> str:
    """The hint with the setting that was probably meant: its name in another section, otherwise a longer or a similar name."""
    from difflib import get_close_matches

    known = list(_names(_read(_packaged_file())))
    meant = ".".join(path)
    beside = [name for name in known if name.count(".") == meant.count(".")]
    near = (
        [name for name in known if name.endswith(f".{path[-1]}")]
        or [
            name for name in beside if name.startswith(meant.removesuffix(path[-1])) and path[-1] in name.split(".")[-1]
        ]
        or get_close_matches(meant, beside, n=1)
    )
    return f"did you mean {' or '.join(near[:2])}?" if near else "the package's settings.yaml has every setting"


def _names(settings: dict[str, Any], above: str = "") -> Iterator[str]:
    """The names of settings and of their sections, such as `simulate.margin`."""
    for name, value in settings.items():
        yield above + name
        if isinstance(value, dict):
            yield from _names(value, f"{above}{name}.")


def _setting(section: str, name: str, *, least: float | None = None, most: int = _MOST) -> Any:
    """A field for this setting, with the default from `settings.yaml`. With `least` it is a number from `least` to `most`."""
    range_ = {} if least is None else {"least": least, "most": most}
    return field(default_factory=partial(default, section, name), metadata=range_)


def _check_numbers(settings: Any) -> None:
    """Refuse values that aren't numbers in their field's range. A field of type int accepts only whole numbers."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.metadata and not (value is None and "None" in each.type):
            _check_number(each.name, value, **each.metadata, whole=each.type.startswith("int"))


def _check_number(name: str, value: object, *, least: float, most: int = _MOST, whole: bool = False) -> None:
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]
        kind = "a whole number" if whole else "a number"
        raise SettingsError(
            f"{name} must be {kind} from {least:g} to {most:,}, not {value!r:.80}", hint=_whose(name, value)
        )


def _whose(name: str, value: object) -> str | None:
    """The hint that the file of `RECEIVER_SETTINGS` has this value; None if the value isn't from there."""
    own = os.environ.get("RECEIVER_SETTINGS")
    is_own = own and any(settings.get(name, own) is value for settings in _sections().values())
    return f"{own} has it so, which the variable RECEIVER_SETTINGS names" if is_own else None


def checked_settings(name: str, value: object, kind: type[_S]) -> _S:
    """The argument of this name; the defaults for None, `SettingsError` if it isn't of this class of settings."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        first_two = ", ".join(f"{each.name}=..." for each in fields(kind)[:2])
        raise SettingsError(
            f"{name} must be {kind.__name__}, not {value!r:.80}", hint=f"give {kind.__name__}({first_two})"
        )
    return value


class IdReuse(StrEnum):
    """How to treat a known id that comes with another body. It is reported either way."""

    DUPLICATE = "duplicate"
    """The message is dropped as a duplicate."""
    DELIVER = "deliver"
    """The message is handed on."""


def checked_id_reuse(value: str | None) -> IdReuse:
    """The value as `IdReuse`; None is the default. `SettingsError` for another value."""
    value = default("receiver", "id_reuse") if value is None else value
    try:
        return IdReuse(value)
    except ValueError:
        raise SettingsError(
            f"id_reuse must be one of {', '.join(IdReuse)}, not {value!r:.80}", hint=_whose("id_reuse", value)
        ) from None


def doubt_about(expiry_us: int) -> str | None:
    """Why E is probably a mistake though it is valid; None for most values."""
    if expiry_us < _LIKELY_MILLIS * 1_000_000 or expiry_us % 1_000_000_000:
        return None
    return f"E = {seconds(expiry_us)} are {duration(expiry_us)}: was it meant in milliseconds? E is in seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """The two windows of a domain, by Apama's names, and when a process retires sources.

    The windows belong to the domain and hold for all processes. Each process retires sources by its own settings. The
    defaults, here and in the classes below, are in `settings.yaml`, or in the file that the variable RECEIVER_SETTINGS names.

    Raises:
        SettingsError: W and E are both 0, or a value is no number, negative or too large.
    """

    dup_detection_per_source_expiry_window_size: int = _setting(
        "receiver", "dup_detection_per_source_expiry_window_size", least=0
    )
    """W: how many of its newest ids each source keeps; 0: no per-source tier."""
    dup_detection_expiry_time_secs: float = _setting("receiver", "dup_detection_expiry_time_secs", least=0)
    """E in seconds, to a microsecond: how long an id stays that newer ones pushed out of W; 0: no time tier."""
    max_sources: int = _setting("receiver", "max_sources", least=0)
    """If there are more sources, those silent for longest are retired, a tenth at a time; 0: no limit."""
    retire_sources_after_days: float = _setting("receiver", "retire_sources_after_days", least=0)
    """A source is retired once it hasn't sent for longer, by the domain's own time; 0: never."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.sizes == (0, 0):
            raise detects_nothing()

    @property
    def sizes(self) -> tuple[int, int]:
        """The window in ids; the expiry in microseconds, rounded to the nearest."""
        return self.dup_detection_per_source_expiry_window_size, round(self.dup_detection_expiry_time_secs * 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How a process uses a store. Processes that share a store may differ.

    Raises:
        SettingsError: A value is invalid.
    """

    lock_timeout_secs: float = _setting("store", "lock_timeout_secs", least=0, most=_LONGEST_WAIT_SECS)
    """How long a batch waits for others before it fails with `StoreBusyError`; at most a day."""
    sqlite_synchronous: str = _setting("store", "sqlite_synchronous")
    """When SQLite syncs its log: `FULL` at each commit, `EXTRA` the folder, too. With `NORMAL` a power cut may undo the last
    commits."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.sqlite_synchronous not in _SYNCHRONOUS:
            raise SettingsError(
                f"sqlite_synchronous must be one of {', '.join(_SYNCHRONOUS)}, not {self.sqlite_synchronous!r:.80}",
                hint=_whose("sqlite_synchronous", self.sqlite_synchronous),
            )


@dataclass(frozen=True, slots=True)
class Recording:
    """Where a receiver records its receipts, and when they are written to a file. `receiver simulate` reads the same path.

    Raises:
        SettingsError: A value is invalid.
    """

    path: StrPath
    """A folder, or the path of a file that ends with `.jsonl.zst` or `.parquet`. Files are made in that folder. Their names
    begin with the given file's name, or with `receipts`."""
    _: KW_ONLY
    rotate_bytes: int = _setting("recording", "rotate_bytes", least=1)
    """A file is made once this many bytes wait in the store, before compression. The file is compressed, and smaller."""
    rotate_secs: float = _setting("recording", "rotate_secs", least=_SHORTEST_ROTATION_SECS)
    """A file is made once the oldest receipts have waited this long."""
    keep_files: int | None = _setting("recording", "keep_files", least=1)
    """How many finished files of this path are kept, whichever process wrote them; None keeps all."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise SettingsError(f"the path of a recording must be a path, not {self.path!r:.80}")
        _check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSettings:
    """How a setting is recommended, and the cost of an id."""

    margin: float = _setting("simulate", "margin", least=1, most=_LARGEST_MARGIN)
    """Size W and E by this many times the log's need."""
    max_missed: int = _setting("simulate", "max_missed", least=0)
    """Size so that at most N duplicates are missed."""
    budget_bytes: int = _setting("simulate", "budget_bytes", least=1)
    memory_bytes_per_id: int = _setting("simulate", "memory_bytes_per_id", least=1)
    database_bytes_per_id: int = _setting("simulate", "database_bytes_per_id", least=1)

    def __post_init__(self) -> None:
        _check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """How much memory each policy takes for an id."""

    memory_bytes_per_id: dict[str, int] = field(default_factory=lambda: default("compare", "memory_bytes_per_id"))
    """By the policy's name."""

    def __post_init__(self) -> None:
        if not isinstance(self.memory_bytes_per_id, dict):
            raise SettingsError(f"memory_bytes_per_id must name policies, not {self.memory_bytes_per_id!r:.80}")
        for policy, size_bytes in self.memory_bytes_per_id.items():
            _check_number(f"memory_bytes_per_id of {policy}", size_bytes, least=1, whole=True)

    def memory_bytes(self, policy: str, ids: int) -> int:
        """How much memory the policy of this name takes for this many ids."""
        if policy not in self.memory_bytes_per_id:
            raise SettingsError(f"memory_bytes_per_id lacks {policy}")
        return ids * self.memory_bytes_per_id[policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings:
    """How a bridge takes messages, and how it treats those that fail.

    Raises:
        SettingsError: A value is invalid.
    """

    max_batch_size: int = _setting("bridge", "max_batch_size", least=1)
    """The most messages in a batch."""
    max_batch_interval_millis: int = _setting("bridge", "max_batch_interval_millis", least=0)
    """A batch ends MS milliseconds after its first message at the latest."""
    max_body_bytes: int = _setting("bridge", "max_body_bytes", least=0)
    """Stop at a message with a larger body.

    The message stays with the broker.
    """
    max_tries: int = _setting("bridge", "max_tries", least=1)
    """Park a message that has failed N times.

    Only failures of the message itself count, not those of a broker or the store.
    """
    status_secs: float = _setting("bridge", "status_secs", least=0)
    """Log the status line every S seconds; 0: never."""
    stuck_after_secs: float = _setting("bridge", "stuck_after_secs", least=0)
    """/livez fails after S seconds without progress; 0: never."""

    def __post_init__(self) -> None:
        _check_numbers(self)
