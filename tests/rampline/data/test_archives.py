"""Hostile archives are refused in one line, and nothing is written outside the folder that they are unpacked into."""

import gzip
import io
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from folder_content import read_tree

from rampline.data import archives
from rampline.data.archives import unpack, unpack_once
from rampline.errors import DatasetError

IMAGE = "images/cats/0.png"


def write_tar(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo, mode: Literal["w", "w:gz"] = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for member in [(IMAGE, b"first"), *members]:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def write_zip(path: Path, *members: tuple[str, bytes] | zipfile.ZipInfo) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in [(IMAGE, b"first"), *members]:
            name, content = member if isinstance(member, tuple) else (member, b"/etc/passwd")
            archive.writestr(name, content)
    return path


def special(kind: bytes, name: str = "images/cats/1.png", target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_special(mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("images/cats/1.png")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    return info


def encrypted(path: Path) -> Path:
    content = bytearray(write_zip(path).read_bytes())
    content[6] |= 1  # of the local header
    content[content.index(b"PK\1\2") + 8] |= 1  # of the central directory
    path.write_bytes(content)
    return path


OUTSIDE: dict[str, Callable[[Path], Path]] = {
    "tar ..": lambda p: write_tar(p / "x.tar", ("../escaped", b"x")),
    "tar absolute": lambda p: write_tar(p / "x.tar", (f"{p}/escaped", b"x")),
    "tar folder ..": lambda p: write_tar(p / "x.tar", special(tarfile.DIRTYPE, "../escaped")),
    "tar.gz ..": lambda p: write_tar(p / "x.tar.gz", ("../escaped", b"x"), mode="w:gz"),
    "zip ..": lambda p: write_zip(p / "x.zip", ("../escaped", b"x")),
    "zip absolute": lambda p: write_zip(p / "x.zip", (f"{p}/escaped", b"x")),
    "zip backslash": lambda p: write_zip(p / "x.zip", ("..\\escaped", b"x")),
    "zip drive": lambda p: write_zip(p / "x.zip", ("C:\\escaped", b"x")),
}
SPECIAL: dict[str, Callable[[Path], Path]] = {
    "tar symlink outside": lambda p: write_tar(p / "x.tar", special(tarfile.SYMTYPE, target="/etc/passwd")),
    "tar symlink folder, then a file through it": lambda p: write_tar(
        p / "x.tar", special(tarfile.SYMTYPE, "images/out", str(p)), ("images/out/escaped", b"x")
    ),
    "tar hard link": lambda p: write_tar(p / "x.tar", special(tarfile.LNKTYPE, target="/etc/passwd")),
    "tar pipe": lambda p: write_tar(p / "x.tar", special(tarfile.FIFOTYPE)),
    "zip symlink": lambda p: write_zip(p / "x.zip", zip_special(stat.S_IFLNK)),
    "zip device": lambda p: write_zip(p / "x.zip", zip_special(stat.S_IFCHR)),
}


def damaged(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


BROKEN: dict[str, Callable[[Path], Path]] = {
    "no zip": lambda p: damaged(p / "x.zip", b"hello"),
    "no tar": lambda p: damaged(p / "x.tar", b"hello"),
    "empty": lambda p: damaged(p / "x.tgz", b""),
    "cut off zip": lambda p: damaged(p / "x.zip", write_zip(p / "y.zip").read_bytes()[:-30]),
    "cut off tar.gz": lambda p: damaged(
        p / "x.tar.gz", write_tar(p / "y.tar.gz", ("b", bytes(range(256)) * 99), mode="w:gz").read_bytes()[:-90]
    ),
    "wrong checksum": lambda p: damaged(
        p / "x.zip", write_zip(p / "y.zip", ("b", b"abc")).read_bytes().replace(b"\xc2A$5", b"\xc2A$6")
    ),
    "encrypted": lambda p: encrypted(p / "x.zip"),
    "a name too long": lambda p: write_tar(p / "x.tar", ("n" * 300, b"x")),
}


def refused(archive: Path, parent: Path) -> str:
    """Unpack below `parent/home`; checks that nothing appeared, there or beside it."""
    before = sorted(parent.rglob("*"))
    with pytest.raises(DatasetError) as caught:
        unpack_once(archive, parent / "home")
    assert sorted(path for path in parent.rglob("*") if path != parent / "home") == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("make", OUTSIDE.values(), ids=OUTSIDE)
def test_paths_that_lead_outside(make, tmp_path):
    message = refused(make(tmp_path), tmp_path)
    assert "escaped" in message
    assert message.endswith(" leads outside; only files and folders may be in it")


@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
def test_links_and_devices(make, tmp_path):
    assert "is a link or a device; only files and folders" in refused(make(tmp_path), tmp_path)


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_damaged_archives(make, tmp_path):
    archive = make(tmp_path)
    assert refused(archive, tmp_path).startswith(f"{archive} cannot be unpacked: ")


@pytest.mark.parametrize("repeated", [IMAGE, "images/cats"])
def test_a_file_twice(tmp_path, repeated):
    assert "twice" in refused(write_tar(tmp_path / "x.tar", (repeated, b"second")), tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_more_than_the_disk_holds(tmp_path, kind):
    size = 10**16
    if kind == "tar":
        archive = write_tar(tmp_path / "x.tar")
        info = tarfile.TarInfo("bomb.png")
        info.size = size
        archive.write_bytes(archive.read_bytes()[:1024] + info.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    else:
        archive = write_zip(tmp_path / "x.zip", ("bomb.png", bytes(10**6)))
        claimed = archive.read_bytes().replace((10**6).to_bytes(4, "little"), (2**32 - 2).to_bytes(4, "little"))
        archive.write_bytes(claimed)
    with pytest.MonkeyPatch.context() as patch:
        if kind == "zip":
            patch.setattr(archives, "KEPT_FREE_SHARE", 1 - 1e-7)
        assert "unpacks to more than fits on the disk" in refused(archive, tmp_path)


def test_many_empty_files_count_too(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "BYTES_PER_FILE", 10**15)
    archive = write_zip(tmp_path / "x.zip", *((f"{i}.png", b"") for i in range(1000)))
    assert "unpacks to more than fits" in refused(archive, tmp_path)


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    info = special(kind, name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(key: str, size: int) -> bytes:
    """A record for all files: `LENGTH KEY=VALUE`, of `size` bytes, a multiple of 512."""
    record = f"{size} {key}=".encode()
    return header(tarfile.XGLTYPE, size) + record + b"v" * (size - len(record) - 1) + b"\n"


def sparse_map(blocks: int) -> bytes:
    first = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    first[482] = 1
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    block = b"00000000001\0" * 42 + b"\1" + bytes(7)
    return bytes(first) + block * blocks


MEGABYTES = 20  # more than it may take
BOMBS: dict[str, Callable[[], bytes]] = {
    "long name": lambda: header(tarfile.GNUTYPE_LONGNAME, MEGABYTES * 2**20) + b"a" * MEGABYTES * 2**20,
    "long link": lambda: header(tarfile.GNUTYPE_LONGLINK, MEGABYTES * 2**20) + b"a" * MEGABYTES * 2**20,
    "pax": lambda: pax("comment", MEGABYTES * 2**20),
    "many pax": lambda: b"".join(
        pax(f"k{number}", 2**17) + header(tarfile.REGTYPE, 0, f"{number}.png") for number in range(MEGABYTES * 8)
    ),
    "sparse": lambda: sparse_map(MEGABYTES * 2**11),
    "sparse pax": lambda: (
        header(tarfile.XHDTYPE, 512)
        + b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".ljust(512, b"\0")
        + header(tarfile.REGTYPE, MEGABYTES * 2**20)
        + b"99999999\n".ljust(512, b"1")[:-1]
        + b"\n"
        + b"1\n" * (MEGABYTES * 2**19 - 256)
    ),
    "folders": lambda: header(tarfile.DIRTYPE, 0, "images/cats") * 2**15,
}


@pytest.mark.parametrize(
    "kind", [*(kind for kind in BOMBS if kind != "folders"), pytest.param("folders", marks=pytest.mark.long)]
)
def test_no_header_fills_the_memory(tmp_path, kind):
    path = tmp_path / "bomb.tar.gz"
    content = write_tar(tmp_path / "x.tar", ("images/cats/1.png", b"second")).read_bytes()
    path.write_bytes(gzip.compress(BOMBS[kind]() + content, compresslevel=1))
    directory = tmp_path / "unpacked"
    directory.mkdir()
    tracemalloc.start()
    try:
        if kind == "folders":
            unpack(path, directory)
            assert (directory / IMAGE).read_bytes() == b"first"
        else:
            with pytest.raises(DatasetError, match=r"cannot be unpacked: (a header|headers|a sparse file)"):
                unpack(path, directory)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_long_path_is_no_bomb(tmp_path):
    name = "/".join(["a" * 200] * 10) + ".png"
    unpack(write_tar(tmp_path / "x.tar", (name, b"deep")), tmp_path / ".")
    assert (tmp_path / name).read_bytes() == b"deep"


def test_a_zip_that_holds_more_than_it_claims(tmp_path):
    archive = write_zip(tmp_path / "x.zip", ("more.png", bytes(10**6)))
    archive.write_bytes(archive.read_bytes().replace((10**6).to_bytes(4, "little"), (9).to_bytes(4, "little")))
    assert "cannot be unpacked" in refused(archive, tmp_path)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz"])
def test_a_good_archive_is_unpacked_once(tmp_path, name):
    members = [("images/dogs/1.png", b"second"), ("__MACOSX/._0.png", b"noise")]
    if name == "x.zip":
        archive = write_zip(tmp_path / name, *members)
    else:
        archive = write_tar(tmp_path / name, *members, mode="w:gz" if "gz" in name else "w")
    folder = unpack_once(archive, tmp_path / "home")
    assert folder.name.startswith("x-")
    assert read_tree(folder) == {IMAGE: b"first", "images/dogs/1.png": b"second"}
    (folder / "mark").touch()
    assert unpack_once(archive, tmp_path / "home") == folder
    assert (folder / "mark").exists()


def test_a_zip_whose_folders_end_in_a_backslash(tmp_path):
    """Older programs of Windows make such."""
    members = ("images\\dogs\\", b""), ("images\\dogs\\1.png", b"second")
    folder = unpack_once(write_zip(tmp_path / "x.zip", *members), tmp_path / "home")
    assert read_tree(folder) == {IMAGE: b"first", "images/dogs/1.png": b"second"}


def test_names_in_a_zip_of_macos_are_utf8_and_others_cp437(tmp_path):
    for name, stored in {"x.zip": "caf\u00e9".encode(), "y.zip": "caf\u00e9".encode("cp437")}.items():
        path = write_zip(tmp_path / name, ("c" * len(stored) + "/1.png", b"second"))
        path.write_bytes(path.read_bytes().replace(b"c" * len(stored) + b"/1", stored + b"/1"))
        assert read_tree(unpack_once(path, tmp_path / "home")) == {IMAGE: b"first", "caf\u00e9/1.png": b"second"}


def test_no_permissions_are_taken_over(tmp_path):
    info = tarfile.TarInfo("run.sh")
    info.mode = 0o6777
    archive, target = write_tar(tmp_path / "x.tar", info), tmp_path / "out"
    target.mkdir()
    unpack(archive, target)
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) & 0o7111 == 0


def test_what_a_killed_one_left_is_removed(tmp_path):
    leftover, other = tmp_path / "home/.x-0123456789abcdef.0a1b2c3d", tmp_path / "home/.git"
    leftover.mkdir(parents=True)
    other.mkdir()
    unpack_once(write_zip(tmp_path / "x.zip"), tmp_path / "home")
    assert not leftover.exists()
    assert other.exists()


@pytest.mark.parametrize("name, top", [("photos.zip", "photos/"), ("photos.tar.gz", "")])
def test_a_folder_source_may_be_an_archive(store, make_folder, tmp_path, home, name, top):
    root = make_folder({"train/cats": 3, "train/dogs": 3})
    files = [(f"{top}{path.relative_to(root)}", path) for path in root.rglob("*.*")]
    if name.endswith("zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for inner, path in files:
                archive.write(path, inner)
    else:
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            for inner, path in files:
                archive.add(path, inner)
    dataset = store(source=f"folder:{tmp_path / name}", image_size=8)
    assert dataset.class_names == ("cats", "dogs")
    assert dataset.splits == {"train": 4, "validation": 2}
    assert dataset.directory.name.startswith("photos-")
    assert dataset.fingerprint == store(source=f"folder:{root}", image_size=8).fingerprint
    assert [path.parent for path in (home.data / "unpacked").iterdir()] == [home.data / "unpacked"]
    store(source=f"folder:{tmp_path / name}", image_size=8)
    assert store.lines[-1] == f"prepared already: {dataset.directory}"


def test_an_archive_that_is_not_there(store, tmp_path):
    with pytest.raises(DatasetError, match=r"archive /.*x.zip cannot be read: No such file"):
        store(source=f"folder:{tmp_path}/x.zip")
