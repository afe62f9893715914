"""Lists the files of a wheel (`list WHEEL`), or unpacks some (`unpack WHEEL`, with a name, a tab and a path a line on standard input)."""

import os
import shutil
import sys
import zipfile
import zlib

CHUNK_BYTES = 1 << 20


def main(what, wheel):
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    with zipfile.ZipFile(wheel) as archive:
        if what == "list":
            for entry in archive.infolist():
                if not entry.is_dir():
                    print(entry.filename)
            return
        for line in sys.stdin:
            name, path = line.rstrip("\n").split("\t")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(name) as packed, open(path, "wb") as file:
                shutil.copyfileobj(packed, file, CHUNK_BYTES)


try:
    main(*sys.argv[1:])
except (OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
    sys.exit(f"{type(error).__name__}: {error}")
