"""The commit rule: generations, markers, manifests and the pointer to the current one.

A stage writes below <stage>/<fingerprint>/. A unit of work (a split, a partition) is done when
its marker exists, written after its objects. The manifest comes when every marker does, and
<stage>/current.json moves last. Readers trust what a manifest names and never list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.contract import MANIFEST_VERSION, ObjectEntry, canonical_json
from pipeline.errors import CorruptError, InputError
from pipeline.storage import Storage, open_storage, read_checked, sha256

MANIFEST = "manifest.json"
RUN_REPORT = "run_report.json"


@dataclass(frozen=True, slots=True)
class Generation:
    """One fingerprint of one stage in a run's store; picklable, so that workers can open it."""

    root: str
    stage: str
    fingerprint: str

    @property
    def prefix(self) -> str:
        """Name of the generation's folder below the root."""
        return f"{self.stage}/{self.fingerprint}"

    @property
    def storage(self) -> Storage:
        """The run's store."""
        return open_storage(self.root)

    def name(self, name: str) -> str:
        """Return the store's name of an object of this generation."""
        return f"{self.prefix}/{name}"

    def marker(self, unit: str) -> dict[str, Any] | None:
        """Return the facts of a unit that is done, None if it is not.

        A unit that lost an object since is not done: doing it again brings the object back.
        Raises CorruptError if the marker itself was changed, or an object has another size.
        """
        storage = self.storage
        name = self.name(f"markers/{unit}.json")
        if storage.size(name) is None:
            return None
        marker = parse_marker(storage.read(name), unit, f"{self.root}/{name}")
        return dict(marker["facts"]) if self.holds(marker["objects"]) else None

    def holds(self, objects: Iterable[Mapping[str, Any]]) -> bool:
        """Say whether the objects of these entries (ObjectEntry as JSON) are all there.

        Raises CorruptError for one of another size.
        """
        storage = self.storage
        for one in objects:
            size = storage.size(self.name(one["name"]))
            if size is None:
                return False
            if size != one["bytes"]:
                raise CorruptError(
                    f"{self.root}/{self.name(one['name'])}: {size} bytes where {one['bytes']} were "
                    "written: cut short or overwritten; remove this file and run the command "
                    "again, which writes it anew"
                )
        return True

    def create(self, name: str, data: bytes) -> ObjectEntry:
        """Create an object ahead of its unit's marker, which `complete` is to name it in."""
        self.storage.create(self.name(name), data)
        return ObjectEntry.of(name, data)

    def complete(
        self,
        unit: str,
        objects: Mapping[str, bytes],
        facts: Mapping[str, Any],
        *,
        created: Sequence[ObjectEntry] = (),
    ) -> None:
        """Create the unit's objects, then its marker with their sizes and checksums and its own.

        `created` are objects of the unit that exist already.
        """
        storage = self.storage
        entries = [*created, *(self.create(name, data) for name, data in objects.items())]
        marker: dict[str, Any] = {
            "facts": facts,
            "objects": [asdict(entry) for entry in entries],
            "unit": unit,
        }
        marker["sha256"] = sha256(canonical_json(marker))
        storage.create(self.name(f"markers/{unit}.json"), canonical_json(marker))

    def read(self, entry: ObjectEntry) -> bytes:
        """Return an object's bytes; CorruptError unless size and checksum are the manifest's."""
        name, storage = self.name(entry.name), self.storage
        return read_checked(
            lambda: storage.read(name), lambda data: check_bytes(data, entry, f"{self.root}/{name}")
        )

    def view(self, entry: ObjectEntry) -> memoryview:
        """Return an object's bytes as `read` does, mapped where it is a local file."""
        name, storage = self.name(entry.name), self.storage
        return read_checked(
            lambda: storage.view(name), lambda data: check_bytes(data, entry, f"{self.root}/{name}")
        )

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest, None while the generation is not complete.

        Raises CorruptError if it is another generation's, or not the one current.json names.
        """
        if self.storage.size(self.name(MANIFEST)) is None:
            return None
        uri = f"{self.root}/{self.name(MANIFEST)}"
        data = self.storage.read(self.name(MANIFEST))
        manifest = check_manifest(parse_json(data, uri), uri)
        pointer = read_pointer(self.root, self.stage)
        if pointer and pointer[0] == self and pointer[1] != sha256(data):
            raise CorruptError(
                f"{uri}: SHA-256 {sha256(data)} where current.json says {pointer[1]}: it was "
                "changed; remove its generation and run the stage again"
            )
        if manifest.get("fingerprint") != self.fingerprint:
            raise CorruptError(
                f"{uri}: is the manifest of {manifest.get('fingerprint')}; remove this generation "
                "and run the stage again"
            )
        return manifest

    def commit(self, manifest: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
        """Write run_report.json and the manifest, then point the stage at this generation."""
        body = {"fingerprint": self.fingerprint, "version": MANIFEST_VERSION, **manifest}
        self.storage.replace(self.name(RUN_REPORT), canonical_json(report))
        self.storage.create(self.name(MANIFEST), canonical_json(body))
        self.point()
        return body

    def point(self) -> None:
        """Make this complete generation the stage's current one."""
        data = self.storage.read(self.name(MANIFEST))
        pointer = canonical_json({"fingerprint": self.fingerprint, "manifest_sha256": sha256(data)})
        name = f"{self.stage}/current.json"
        if self.storage.size(name) is None or self.storage.read(name) != pointer:
            self.storage.replace(name, pointer)


def objects_of(manifest: Any) -> Iterator[ObjectEntry]:
    """Yield every object that a manifest names, wherever in it."""
    if isinstance(manifest, Mapping):
        if manifest.keys() == {"name", "bytes", "sha256"}:
            yield ObjectEntry(**manifest)
            return
        manifest = manifest.values()
    elif not isinstance(manifest, list):
        return
    for one in manifest:
        yield from objects_of(one)


def parse_json(data: bytes, uri: str) -> Any:
    """Parse an object that clozeline wrote; CorruptError names it if it is not JSON."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise CorruptError(
            f"{uri}: not valid JSON ({error}); it was cut short or changed. Remove its generation "
            "and run the stage again"
        ) from None


def parse_marker(data: bytes, unit: str, uri: str) -> dict[str, Any]:
    """Return what a unit's marker says; CorruptError if it is not as it was written there."""
    try:
        marker = json.loads(data)
    except ValueError:
        marker = None
    digest = marker.pop("sha256", None) if isinstance(marker, dict) else None
    if marker is None or digest != sha256(canonical_json(marker)):
        wrong = "not the bytes that were written (their own SHA-256 differs)"
    elif marker["unit"] != unit:
        wrong = f"is the marker of {marker['unit']}"
    else:
        return dict(marker)
    raise CorruptError(
        f"{uri}: {wrong}; remove this file and run the command again, which does its unit anew"
    )


def check_manifest(manifest: Any, uri: str) -> dict[str, Any]:
    """Refuse a manifest of another version of clozeline."""
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version != MANIFEST_VERSION:
        raise CorruptError(
            f"{uri}: manifest version {version}; this clozeline reads version {MANIFEST_VERSION}"
        )
    return dict(manifest)


def check_bytes(data: bytes | memoryview, entry: ObjectEntry, uri: str) -> None:
    """Raise CorruptError unless `data` has the size and the SHA-256 of `entry`."""
    check_digest(len(data), sha256(data), entry, uri)


def check_digest(size: int, digest: str, entry: ObjectEntry, uri: str) -> None:
    """Raise CorruptError unless bytes of this size and SHA-256 are those of `entry`."""
    if size != entry.bytes:
        raise CorruptError(
            f"{uri}: {size} bytes where its manifest says {entry.bytes}: cut short or "
            "overwritten; remove its generation and run the stage again"
        )
    if digest != entry.sha256:
        raise CorruptError(
            f"{uri}: SHA-256 {digest} where its manifest says {entry.sha256}: its bytes "
            "were changed; remove its generation and run the stage again"
        )


def read_pointer(root: str, stage: str) -> tuple[Generation, str] | None:
    """Return the generation that <stage>/current.json names and its manifest's SHA-256.

    None if the stage was never completed; CorruptError if the pointer names no generation.
    """
    storage = open_storage(root)
    name = f"{stage}/current.json"
    if storage.size(name) is None:
        return None
    try:
        pointer = json.loads(storage.read(name))
    except ValueError:
        pointer = None
    fields = pointer if isinstance(pointer, dict) else {}
    fingerprint, digest = fields.get("fingerprint"), fields.get("manifest_sha256")
    if not isinstance(fingerprint, str) or not isinstance(digest, str):
        raise CorruptError(
            f"{storage.uri}/{name}: names no generation: it was cut short or changed; remove this "
            "file and run the stage again, which finds its work done"
        )
    return Generation(root, stage, fingerprint), digest


def current(root: str, stage: str, command: str) -> tuple[Generation, dict[str, Any]]:
    """Return the current generation of a stage and its manifest.

    Raises InputError that names `command` if the stage was never completed, CorruptError if the
    manifest is not the one the pointer names.
    """
    storage = open_storage(root)
    name = f"{stage}/current.json"
    pointer = read_pointer(root, stage)
    if pointer is None:
        raise InputError(f"{storage.uri}/{name}: no {stage} yet; run `{command}` first")
    generation, digest = pointer
    data = storage.read(generation.name(MANIFEST))
    uri = f"{storage.uri}/{generation.name(MANIFEST)}"
    if sha256(data) != digest:
        raise CorruptError(
            f"{uri}: SHA-256 {sha256(data)} where {name} says {digest}; "
            f"remove the generation and run `{command}` again"
        )
    return generation, check_manifest(parse_json(data, uri), uri)


def require_same_identity(
    generation: Generation, made_with: Mapping[str, Any], wanted: Mapping[str, Any], command: str
) -> None:
    """Refuse an upstream generation that was made with other identity fields than the config's."""
    differing = differences(made_with, wanted)
    if differing:
        raise InputError(
            f"{generation.root}/{generation.prefix}: made with other settings than the config "
            f"({'; '.join(differing)}); run `{command}` first"
        )


def differences(made_with: Any, wanted: Any, key: str = "") -> Sequence[str]:
    """Return "key: VALUE there, VALUE here" for each field in which two identities differ."""
    if isinstance(made_with, Mapping) and isinstance(wanted, Mapping):
        found: list[str] = []
        for name in sorted({*made_with, *wanted}):
            inner = f"{key}.{name}" if key else name
            found.extend(differences(made_with.get(name), wanted.get(name), inner))
        return found
    if isinstance(made_with, list) and isinstance(wanted, list) and len(made_with) == len(wanted):
        pairs = enumerate(zip(made_with, wanted, strict=True))
        return [one for at, pair in pairs for one in differences(*pair, f"{key}.{at}")]
    return [] if made_with == wanted else [f"{key}: {made_with!r} there, {wanted!r} here"]
