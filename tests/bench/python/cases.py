"""Makes files as people have them, whole and damaged, and what the field's own readers make of them.

    python cases.py OUT SEED COUNT

Writes COUNT instances of each kind into folders of OUT, and `cases.json`: for each, its kind, its lines of `[data]` and of `[data.image]`, the reader, and what the reader gives: texts, which are records; tokens; whole files, with nothing after them; or images with their classes. It is null where the reader refuses the file.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import tokenizers

import cases_images
from cases_images import Refused

WORDS = "the of and to in a is that it was for on are with as his they be at one have this from or had by hot but some what there we can out other were all your when up use word how said".split()
ODD = ["", " ", "é", "汉字", "🙂", "a\tb", "two  spaces", "comma, here", 'a "quoted" word', "back\\slash", "line\nbreak", "\u00a0", "e\u0301", "|", "'", "NaN", "null", "0123", "#", "﻿mark"]


def text(rng, odd=0.3):
    words = [rng.choice(ODD) if rng.random() < odd else rng.choice(WORDS) for _ in range(rng.randint(1, 9))]
    return " ".join(words)


def damage(rng, data, marks):
    """Takes a mark away, puts one in, or cuts the file."""
    places = [at for at, byte in enumerate(data) if byte in marks]
    way = rng.randrange(3)
    if way == 0 and places:
        at = rng.choice(places)
        return data[:at] + data[at + 1 :]
    if way == 1:
        at = rng.randrange(len(data) + 1)
        return data[:at] + bytes([rng.choice(marks)]) + data[at:]
    return data[: rng.randrange(1, len(data) + 1)]


def read_table(data, delimiter):
    try:
        rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise Refused from error
    rows = [row for row in rows if row]
    if not rows or rows[0].count("text") != 1 or any(len(row) != len(rows[0]) for row in rows):
        raise Refused
    at = rows[0].index("text")
    return [row[at] for row in rows[1:]]


def table(rng, folder, delimiter, name):
    columns = rng.sample(["id", "text", "label", "note"], rng.randint(2, 4))
    if "text" not in columns:
        columns[0] = "text"
    out = io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=rng.choice(["\n", "\r\n"]))
    writer.writerow(columns)
    for number in range(rng.randint(1, 30)):
        writer.writerow([text(rng) if column != "id" else number for column in columns])
    data = out.getvalue().encode()
    if rng.random() < 0.6:
        data = damage(rng, data, b'",\n' + delimiter.encode())
    (folder / name).write_bytes(data)
    return {"path": name, "format": name.rsplit(".", 1)[1], "column": "text"}, lambda: read_table(data, delimiter)


def csvs(rng, folder):
    return table(rng, folder, ",", "a.csv")


def tsvs(rng, folder):
    return table(rng, folder, "\t", "a.tsv")


def read_lines(data):
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise Refused from error
    texts = []
    for line in lines:
        if not line.strip(" \t\r"):
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise Refused from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise Refused
        try:
            record["text"].encode()
        except UnicodeEncodeError as error:
            raise Refused from error
        texts.append(record["text"])
    return texts


def lines_of_json(rng, folder):
    records, odd = [], rng.choice([0, 0, 0, 0.1])
    for number in range(rng.randint(1, 20)):
        record = {"id": number, "text": text(rng), "score": rng.choice([1.5, float("nan"), float("inf"), None, [1, {"text": "inner"}]])}
        if rng.random() < odd:
            record["text"] = rng.choice([None, 3, ["a"], "\ud800"])
        keys = list(record)
        rng.shuffle(keys)
        records.append(json.dumps({key: record[key] for key in keys}, ensure_ascii=rng.random() < 0.5 or "\ud800" in str(record["text"])))
    data = ("\n".join(records) + "\n").encode()
    if rng.random() < 0.4:
        data = damage(rng, data, b'"{}:,\n\\')
    (folder / "a.jsonl").write_bytes(data)
    return {"path": "a.jsonl", "format": "jsonl"}, lambda: read_lines(data)


def parquets(rng, folder):
    count = rng.randint(1, 200)
    nulls = rng.choice([0, 0, 0.05])
    texts = [None if rng.random() < nulls else text(rng) for _ in range(count)]
    kind = rng.choice([pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), pyarrow.binary()])
    values = [None if of is None else of.encode() for of in texts] if kind == pyarrow.binary() else texts
    if kind == pyarrow.binary() and rng.random() < 0.5:
        values[rng.randrange(count)] = b"\xff\xe9"
    columns = {"id": pyarrow.array(range(count)), "text": pyarrow.array(values).cast(kind) if kind != pyarrow.binary() else pyarrow.array(values, kind)}
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table(columns),
        path,
        compression=rng.choice(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
        row_group_size=rng.randint(1, 80),
        use_dictionary=rng.random() < 0.5,
        version=rng.choice(["1.0", "2.6"]),
        data_page_version=rng.choice(["1.0", "2.0"]),
    )
    if rng.random() < 0.2:
        path.write_bytes(path.read_bytes()[: -rng.randint(1, 40)])

    def read():
        try:
            column = pyarrow.parquet.read_table(path)["text"].to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise Refused from error
        # A row without a text is a record that cannot be used.
        if any(value is None for value in column):
            raise Refused
        try:
            return [value.decode() if isinstance(value, bytes) else value for value in column]
        except UnicodeDecodeError as error:
            raise Refused from error

    return {"path": "a.parquet", "format": "parquet"}, read


def compressed(rng, folder):
    plain = "\n".join(text(rng) for _ in range(rng.randint(1, 40))).encode()
    # Of several members, as tools that append write them.
    half = rng.randrange(len(plain) + 1)
    pieces = rng.choice([[plain], [plain[:half], plain[half:]]])
    name, pack, unpack = rng.choice(
        [
            ("a.txt.gz", gzip.compress, gzip.decompress),
            ("a.txt.bz2", bz2.compress, bz2.decompress),
            ("a.txt.xz", lzma.compress, lzma.decompress),
            ("a.txt.zst", lambda data: pyarrow.compress(data, "zstd", asbytes=True), None),
        ]
    )
    packed = b"".join(pack(piece) for piece in pieces)
    is_cut = rng.random() < 0.3
    if is_cut:
        packed = packed[: rng.randrange(4, len(packed))]
    (folder / name).write_bytes(packed)

    def read():
        if unpack is None:
            if is_cut:
                raise Refused
            return [{"whole": plain.decode("utf-8-sig")}]
        try:
            return [{"whole": unpack(packed).decode("utf-8-sig")}]
        except (EOFError, OSError, ValueError, lzma.LZMAError, UnicodeDecodeError) as error:
            raise Refused from error

    return {"path": name, "format": "text"}, read


def named_wrong(rng, folder):
    """A name that says another format than the content. Reading the content is right, and so is refusing it."""
    records = [{"text": text(rng)} for _ in range(rng.randint(2, 9))]
    texts = [record["text"] for record in records]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), out)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{rng.getrandbits(256):064x}\nsize {rng.randrange(10**9)}\n".encode()
    html = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not Found</body></html>\n"
    contents = {"lines": lines, "parquet": out.getvalue(), "pointer": pointer, "html": html, "gzip": gzip.compress(lines), "png": b"\x89PNG\r\n\x1a\n" + rng.randbytes(60)}
    name, usual = rng.choice([("a.txt", None), ("a.jsonl", "lines"), ("a.parquet", "parquet"), ("a.csv", None), ("a.json.gz", "gzip"), ("a.jsonl.gz", "gzip")])
    what = rng.choice([of for of in contents if of != usual])
    (folder / name).write_bytes(contents[what])

    def read():
        if what in ("lines", "parquet", "gzip"):
            return texts
        raise Refused

    return {"path": name}, read


def encodings(rng, folder):
    plain = " ".join(text(rng) for _ in range(9))
    encoding = rng.choice(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "utf-32", "cp1252", "shift_jis"])
    data = plain.encode(encoding, errors="replace" if encoding not in ("utf-8", "utf-8-sig") else "strict")
    (folder / "a.txt").write_bytes(data)

    def read():
        try:
            decoded = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Refused from error
        # Text of two bytes a character has zeros, which no text has.
        if "\0" in decoded:
            raise Refused
        return [{"whole": decoded}]

    return {"path": "a.txt", "format": "text"}, read


def globs(rng, folder):
    texts = []
    lost = False
    for number in range(rng.randint(1, 6)):
        way = rng.choice(["plain", "plain", "plain", "hidden", "dangling", "folder", "bytes", "upper"])
        name, content = f"{number}.txt", text(rng)
        if way == "dangling":
            (folder / name).symlink_to("nowhere")
            lost = True
        elif way == "folder":
            (folder / name).mkdir()
            (folder / name / "b.txt").write_text(content)
            lost = True
        elif way == "bytes":
            with open(bytes(folder) + f"/{number}-caf".encode() + b"\xe9.txt", "w") as file:
                file.write(content)
            texts.append(content)
        elif way == "hidden":
            (folder / f".{name}").write_text(content)
        elif way == "upper":
            (folder / f"{number}.TXT").write_text(content)
        else:
            (folder / name).write_text(content)
            texts.append(content)

    def read():
        # With `strict_files`, whatever matches and cannot be read is a reason to refuse.
        if lost or not texts:
            raise Refused
        # Each file is a document, with the separator behind it, and one without text has none.
        return [of.removeprefix("\ufeff") for of in texts if of not in ("", "\ufeff")]

    return {"glob": "*.txt", "format": "text"}, read


def tokenised(rng, folder, classes):
    """With the settings that a file has after calls with truncation, padding and dropout."""
    _, tokenizer, settings = rng.choice(classes)
    described = json.loads(json.dumps(tokenizer))
    for key, value in settings.items():
        if rng.random() < 0.6:
            (described["model"] if key == "dropout" else described)[key] = value
    texts = [text(rng) for _ in range(rng.randint(1, 12))]
    plain = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": of}) + "\n" for of in texts))
    ids = [plain.encode(of + "</s>", add_special_tokens=False).ids for of in texts]
    return {"path": "a.jsonl", "format": "jsonl"}, lambda: ids


def long_texts(rng, folder, classes):
    """More than what is tokenised at once: the tokens are those of the whole text."""
    _, tokenizer, _ = rng.choice(classes)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    words = [text(rng) for _ in range(40)]
    parts, length, wanted = [], 0, rng.randint(9 << 17, 5 << 19)
    while length < wanted:
        parts.append(rng.choice(words) + rng.choice([" ", " ", "\n", "\n\n", "", "  ", "\r\n", "\t"]))
        length += len(parts[-1].encode())
    # The mark that a file may begin with is none of its text.
    whole = "".join(parts).removeprefix("\ufeff")
    (folder / "a.txt").write_bytes(whole.encode())
    ids = tokenizers.Tokenizer.from_str(json.dumps(tokenizer)).encode(whole, add_special_tokens=False).ids
    return {"path": "a.txt", "format": "text"}, lambda: [ids]


READERS = {
    "CSV": (csvs, "csv of Python, strict, rows of equal length"),
    "TSV": (tsvs, "csv of Python, strict, rows of equal length"),
    "JSON lines": (lines_of_json, "json of Python"),
    "Parquet": (parquets, f"pyarrow {pyarrow.__version__}"),
    "compressed text": (compressed, "gzip, bz2, lzma of Python; pyarrow"),
    "a name that says another format": (named_wrong, "the content's own"),
    "encodings": (encodings, "UTF-8 of Python"),
    "globs and folders": (globs, "glob of Python, nothing left out"),
    "texts of more than 1 MiB": (long_texts, f"tokenizers {tokenizers.__version__}"),
    "tokenizers": (tokenised, f"tokenizers {tokenizers.__version__}"),
}


def main():
    out, seed, count, fixture = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    classes = [(of["name"], of["tokenizer"], of["settings"]) for of in json.loads(fixture.read_text())]
    cases = []
    for kind, (make, reader) in READERS.items():
        # Each of these takes as long as twenty others.
        for number in range(max(count // 20, 1) if make is long_texts else count):
            rng = random.Random(f"{seed} {kind} {number}")
            folder = out / f"{kind.replace(' ', '-')}-{number}"
            folder.mkdir(parents=True)
            data, read = make(rng, folder, classes) if make in (tokenised, long_texts) else make(rng, folder)
            try:
                expected = read()
            except Refused:
                expected = None
            cases.append({"kind": kind, "folder": folder.name, "reader": reader, "data": data, "expected": expected})
    for kind, (make, reader) in cases_images.READERS.items():
        for number in range(count):
            rng = random.Random(f"{seed} {kind} {number}")
            folder = out / f"{kind.replace(' ', '-')}-{number}"
            folder.mkdir(parents=True)
            data, image, read = make(rng, folder)
            case = {"kind": kind, "folder": folder.name, "reader": reader, "data": data, "image": image, "expected": None}
            try:
                case["expected" if image is None else "images"] = read()
            except Refused:
                pass
            cases.append(case)
    (out / "cases.json").write_text(json.dumps(cases))


main()
