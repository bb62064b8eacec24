"""What the pages say can be done can be done: their commands run, their flags and links and paths exist.

A code block is fenced and says its language. A block of sh, python, c or yaml has a mark on the line before it:

    <!-- run -->                       it is run here, in a folder with the models of docs_models.py and MODEL.modelc
    <!-- run, with THIS as THAT -->    with other words: a small model or budget in place of what readers have
    <!-- run, where PROGRAM -->        where there is this program
    <!-- run: no, REASON -->           it is not: what it needs, or the test that has it in small; but modelc, or the
                                       script, reads its whole command line

Blocks of a page are run in their order in one folder of its own. Of sh each line is a command; c is the file app.c;
yaml is what a copy of configs/default.yaml says otherwise.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from docs_models import write_models
from repository import ROOT

import modelc
from modelc.cli import group, main
from modelc.compile.config import load_config

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
}
README_BYTES = 12 << 10
LANGUAGES = ("sh", "python", "c", "yaml")
MARK = re.compile(
    r"<!-- run(?:: no, (?P<reason>[^>]+)|(?:, with (?P<this>.+?) as (?P<that>.+?))?(?:, where (?P<program>\S+))?) -->"
)
FLAG = re.compile(r"(?<![\w/$'.-])--?[a-z][a-z-]*")
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
FUZZERS = ROOT / "tests/fuzz"
PATH = re.compile(r"(?:modelc|scripts|tests|targets|configs|docs|examples|\.ci)/[\w./-]*\w/?")


class Block(NamedTuple):
    page: str
    line: int
    language: str
    mark: re.Match[str] | None
    text: str

    @property
    def runs(self) -> bool:
        return self.mark is not None and self.mark["reason"] is None

    @property
    def to_run(self) -> str:
        """The text with the words by which it is run."""
        this = self.mark["this"] if self.mark else None
        assert this is None or this in self.text, f"{self.place}: there is no {this} in it"
        return self.text if self.mark is None or this is None else self.text.replace(this, self.mark["that"])

    @property
    def lacks(self) -> str:
        """The program that it needs and this machine has not."""
        program = self.mark["program"] if self.mark else None
        return program if program and shutil.which(program) is None else ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> Iterator[Block]:
    lines, start = PAGES[page].splitlines(), None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            mark = MARK.fullmatch(lines[start - 1])
            yield Block(page, start + 1, lines[start][3:].strip(), mark, "\n".join(lines[start + 1 : number]))
            start = None
    assert start is None, f"{page}:{start}: this block has no end"


def prose(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)


def spans(page: str) -> list[str]:
    """What stands between backquotes in the prose of a page."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


def commands(text: str) -> list[str]:
    """Whole commands: lines that are indented, or follow a backslash, go on the one before."""
    joined = re.sub(r"\\\n\s*|\n\s+", " ", text)
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


BLOCKS = {page: list(blocks_of(page)) for page in PAGES}
RUN = [page for page, blocks in BLOCKS.items() if any(block.runs for block in blocks)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_its_language_and_whether_it_is_run(page: str) -> None:
    for block in BLOCKS[page]:
        assert block.language in (*LANGUAGES, "text"), f"{block.place}: is it sh, python, c, yaml or text?"
        assert block.mark or block.language == "text", f"{block.place} has no mark: <!-- run -->, or why not"
        for path in PATH.findall(block.mark["reason"] or "") if block.mark else ():
            assert (ROOT / path).exists(), f"{block.place}: there is no {path}"
    indented = re.search(r"\n\n {4}\S.*", prose(page))
    assert not indented, f"{page}: write {indented[0].strip() if indented else ''!r} in a fence"


def test_blocks_are_run() -> None:
    assert len(RUN) >= 12 and sum(block.runs for blocks in BLOCKS.values() for block in blocks) >= 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all models, and the package of MODEL.onnx."""
    folder = tmp_path_factory.mktemp("docs")
    write_models(folder)
    modelc.compile(folder / "MODEL.onnx", output=folder / "MODEL.modelc", database=False)
    return folder


def run_line(line: str, place: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "modelc":  # in this process, which has imported all that it needs
        with pytest.raises(SystemExit) as stop:
            main(words[1:])
        assert not stop.value.code, f"{place}: {line} ends with {stop.value.code}"
        return
    done = subprocess.run(["sh", "-ec", line], capture_output=True, text=True)
    assert not done.returncode, f"{place}: {line}\n{done.stdout}{done.stderr}"


def changed(text: str) -> dict[str, Any]:
    """The default configuration with what `text` says otherwise."""
    tree: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "default.yaml").read_text())
    for section, values in yaml.safe_load(text).items():
        tree[section] = {**tree[section], **values} if isinstance(values, dict) else values
    return tree


def run_block(block: Block, folder: Path) -> None:
    if block.language == "sh":
        for line in commands(block.to_run):
            run_line(line, block.place)
    elif block.language == "python":
        path = list(sys.path)
        try:
            exec(compile(block.to_run, block.place, "exec"), {"__name__": "__main__"})
        finally:
            sys.path[:] = path
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
                    del sys.modules[name]
    elif block.language == "yaml":
        (folder / "CONFIG.yaml").write_text(yaml.safe_dump(changed(block.text)))
        load_config(folder / "CONFIG.yaml")
    else:
        (folder / "app.c").write_text(block.text + "\n")


@pytest.mark.parametrize("page", RUN)
@pytest.mark.sweep(6)
def test_what_a_page_says_can_be_run(
    page: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_brief: None
) -> None:
    folder = Path(shutil.copytree(models, tmp_path / "page"))
    monkeypatch.chdir(folder)
    for block in BLOCKS[page]:
        if block.runs and not block.lacks:
            run_block(block, folder)


# --- what is not run is read ----------------------------------------------------------------------------------------


class Understood(Exception):
    """A script has read its command line."""


NOT_RUN = [
    (f"{block.place} {line}", shlex.split(line, comments=True))
    for blocks in BLOCKS.values()
    for block in blocks
    for line in commands(block.text)
    if block.language == "sh" and block.mark and not block.runs
]
EXAMPLES = "examples/"  # which have tests of their own
OTHERS = {"pip", "dask", "eval", ".venv/bin/python", "aarch64-linux-gnu-objdump"}  # programs that are not ours


def is_read(words: list[str]) -> bool:
    return words[0] not in OTHERS and not words[1].startswith(EXAMPLES)


def test_what_is_not_run_is_ours_or_named() -> None:
    programs = {words[0] for _, words in NOT_RUN}
    assert programs - OTHERS == {"modelc", "python", "sh"} and len(NOT_RUN) > 30


@pytest.mark.parametrize("words", [pytest.param(w, id=place) for place, w in NOT_RUN if is_read(w)])
def test_what_is_not_run_is_understood(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = words
    if program == "modelc":
        verb, *given = arguments
        group.commands[verb].make_context(verb, given, obj={"debug": False})
        return
    file = ROOT / arguments[0]
    if program == "sh":
        assert subprocess.run(["sh", "-n", file], capture_output=True, text=True).stderr == ""
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> None:
        parse(parser, *given, **named)
        raise Understood

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
    monkeypatch.setattr(sys, "argv", [str(file), *arguments[1:]])
    with pytest.raises(Understood):
        runpy.run_path(str(file), run_name="__main__")


# --- what is named exists -------------------------------------------------------------------------------------------


def parts_of(verb: str) -> list[click.Command]:
    command = group.commands[verb]
    return list(command.commands.values()) if isinstance(command, click.Group) else [command]


def shown(verb: str) -> Iterator[click.Option]:
    """What --help lists of a verb, of all its parts together."""
    for part in parts_of(verb):
        yield from (option for option in part.params if isinstance(option, click.Option) and not option.hidden)


@cache
def options(verb: str) -> frozenset[str]:
    return frozenset({"-h", "--help"}.union(*(option.opts for option in shown(verb))))


@cache
def script_options() -> frozenset[str]:
    return frozenset(
        flag
        for path in (*SCRIPTS, *FUZZERS.glob("*.py"))
        for flag in re.findall(r'"(--?[a-z][a-z-]*)"', path.read_text())
    )


def wrong_flags(command: str) -> set[str]:
    """The flags of a command of modelc's that do not exist, or the verb; of a part of one, such as `--state a=b`, those
    that no command has."""
    words = command.replace("python -m modelc", "modelc").split()
    given = set(FLAG.findall(command.partition(" #")[0]))
    if words[0] == "modelc" and len(words) > 1 and words[1] not in ("--version", "VERB"):
        return given - options(words[1]) if words[1] in group.commands else {words[1]}
    if words[0] in group.commands:
        return given - options(words[0])
    if words[0].startswith("--"):
        return given - script_options() - frozenset[str]().union(*map(options, group.commands))
    if words[0].startswith("scripts/") or (words[:1] == ["python"] and words[1:2] != ["-m"]):
        return given - script_options()
    return set()


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page: str) -> None:
    given = [command for block in BLOCKS[page] for command in commands(block.text) if block.language in ("sh", "text")]
    for command in [*given, *spans(page)]:
        assert not (wrong := wrong_flags(command)), f"{page}: {command!r}: there is no {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("verb", sorted(group.commands))
def test_every_flag_is_named(verb: str) -> None:
    named = next(c for c in commands(BLOCKS["docs/command-line.md"][0].text) if c.split()[1] == verb)
    flags = {max(option.opts, key=len) for option in shown(verb)}
    unsaid = flags - {"--json", "--debug", "--quiet", "--database"} - set(FLAG.findall(named))
    assert not unsaid, f"docs/command-line.md does not say {', '.join(sorted(unsaid))} of {verb}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    for span in spans(page):
        for path in PATH.findall(span) if not span.startswith("http") else ():
            assert "NAME" in path or (ROOT / path).exists(), f"{page}: there is no {path}"


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page}: {link} has no such heading"


def test_every_page_is_linked() -> None:
    linked = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", PAGES["README.md"])}
    assert {page for page in PAGES if page.startswith("docs/")} <= linked


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].encode()) <= README_BYTES


def test_scripts_are_listed() -> None:
    listed = set(re.findall(r"^\| `scripts/(\w+)\.py`", PAGES["docs/scripts.md"], re.MULTILINE))
    assert listed == {path.stem for path in SCRIPTS if "__main__" in path.read_text()}


def test_fuzzers_are_listed() -> None:
    listed = re.findall(r"^\| `python tests/fuzz (\w+)`", PAGES["docs/scripts.md"], re.MULTILINE)
    assert sorted(listed) == sorted(runpy.run_path(str(FUZZERS / "__main__.py"))["KINDS"])
