"""Every error that the program can end with is in docs/TROUBLESHOOTING.md."""

import re

from support import *  # noqa: F403

SOURCES = ["fuse/cli/src", "client/nfs3/src/mount", "client/rpcrdma/src/rpc/plain.rs", "client/nfs3/src/options.rs"]
GUIDE = ROOT / "docs/TROUBLESHOOTING.md"
# What makes an error, or its text.
MAKERS = re.compile(
    r"(?:Failure::new|MountError::new|\bfailed|\brefused|\brefusal|\bdismiss|#\[error|\bmessage = format!|"
    r"\bmessage: format!|\bnotice|\.cannot|\bwhy = )\("
)
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
# Faults of this program: what a user can do about each is to report it.
INTERNAL = ["cannot write JSON", "the connecting task died"]


def code_of(path):
    """Without tests and comments."""
    text = path.read_text().split("#[cfg(test)]")[0]
    return re.sub(r"^\s*//.*$", "", text, flags=re.M)


def arguments(text, begin):
    """From an opening parenthesis to its end."""
    depth, at = 0, begin
    while at < len(text):
        if literal := STRING.match(text, at):
            at = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            break
        at += 1
    return text[begin:at]


def messages():
    """(file, text); what is filled in is `*`."""
    found = set()
    for source in SOURCES:
        root = ROOT / source
        for path in sorted(root.rglob("*.rs")) if root.is_dir() else [root]:
            # Why an option is refused always follows "cannot be honoured"; CONFIGURATION.md has it.
            if path.name in ("tests.rs", "table.rs"):
                continue
            text = code_of(path)
            places = [arguments(text, match.end() - 1) for match in MAKERS.finditer(text)]
            for place in places:
                for literal in STRING.findall(place):
                    literal = re.sub(r"\\\n\s*", "", literal).replace('\\"', '"')
                    literal = re.sub(r"\{[^}]*\}", "*", literal)
                    # One or two words are parts of others: names, protocols.
                    if len(re.findall(r"[A-Za-z]{2,}", literal)) >= 3:
                        found.add((str(path.relative_to(ROOT)), literal))
    assert len(found) > 60, f"only {len(found)} messages: they are made differently now"
    return sorted(found)


def rows():
    """Messages of the guide: their parts around '...'."""
    guide = []
    for line in GUIDE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] not in ("Message", "Symptom") and not cells[0].startswith("---"):
            assert cells[2], f"no remedy: {line}"
            # Messages with the same cause share a row; a comma may belong to one, too.
            for one in [cells[0], *cells[0].split(", ")]:
                parts = [part.strip(" :,") for part in one.split("...")]
                guide.append([part.lower() for part in parts if part])
    assert len(guide) > 40, "the guide's tables are written differently now"
    return guide


def covered(message, guide):
    message = message.lower()

    def in_order(parts):
        at = 0
        for part in parts:
            at = message.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return True

    # A message may be the end of another: the row has both.
    end = re.split("[*;:]", message)[0].strip()
    ends = len(end.split()) >= 2 and any(end in part for parts in guide for part in parts)
    return ends or any(parts and in_order(parts) for parts in guide)


@case
def every_error_has_a_remedy():
    guide = rows()
    missing = [
        f"{path}: {message}"
        for path, message in messages()
        if not covered(message, guide) and not any(word in message for word in INTERNAL)
    ]
    assert not missing, "not in docs/TROUBLESHOOTING.md:\n  " + "\n  ".join(missing)
