"""Substitutes parameters in a shell command. Each value becomes exactly one word, or a part of one word.

The scanner supports the part of the grammar of POSIX shells (and bash) on which the meaning of a character
depends: quotes, substitutions, here-documents, comments and arithmetic. If there is no safe way to write a
value at its position, the value is refused. Only a value without any character that has a special meaning to
a shell is accepted at every position.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from gridmill.domain.frozen import dataclass
from gridmill.domain.sql_statement import REFERENCE

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-]+")
_NUMBER = re.compile(r"[+-]?[0-9]+")
_VARIABLE = re.compile(r"\$\w*\Z")
_DELIMITER = re.compile(r"""(-?)[ \t]*((?:\\.|'[^'\n]*'|"[^"\n]*"|[^\s;&|<>()'"\\])+)""")
_WORD = re.compile(r"[A-Za-z_][\w-]*")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BEFORE_COMMAND = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "in"})
_KEYWORDS = _BEFORE_COMMAND | {"fi", "done", "case", "esac", "for", "function", "select", "time"}

Words = str | tuple[str, ...]
"""The value of a parameter as one text, or the values of a list as several texts."""
Lookup = Callable[[re.Match[str]], Words | None]
"""A function that returns the value of a reference, or None if the reference is not replaced."""


class UnsafeError(Exception):
    """A value cannot be written safely at the position of its reference. The message contains the reason."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class _QuoteState(StrEnum):
    """The kind of quoting at the position of a character."""

    COMMAND = "command"
    SUBSTITUTION = "substitution"
    PARENTHESES = "parentheses"
    SINGLE = "single quotes"
    DOUBLE = "double quotes"
    ANSI = "$'...'"
    BACKTICKS = "backticks"
    BRACES = "${...} of the shell"
    ARITHMETIC = "arithmetic"
    COMMENT = "comment"
    HERE = "here-document"


_OPEN = frozenset(
    {_QuoteState.COMMAND, _QuoteState.SUBSTITUTION, _QuoteState.PARENTHESES, _QuoteState.BACKTICKS}
)
"""The kinds of quoting in which the shell splits text into words, and in which quotes can begin."""
_ESCAPED: Mapping[_QuoteState, str] = MappingProxyType(
    {_QuoteState.DOUBLE: '\\"$`', _QuoteState.HERE: "\\$`"}
)
_OUTSIDE = (
    "Pass the value as an argument or by `env`, outside of the quotes; or write ${%s:raw} to "
    "insert it unquoted."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HereDocument:
    """A here-document that was announced on the present line, and whose text begins after the next line
    break."""

    delimiter: str
    quoted: bool
    tabs: bool


def fill_shell(text: str, lookup: Lookup) -> str:
    """Returns the command with replaced references. Raises UnsafeError if a value cannot be written
    safely."""
    scan = _ShellScanner(text, lookup, _QuoteState.COMMAND)
    filled = scan.run()
    if scan.quoted and scan.at not in (_QuoteState.COMMAND, _QuoteState.COMMENT):
        raise UnsafeError(
            f"the command ends within {scan.at}", "Close the quotes and parentheses of the command."
        )
    return filled


class _ShellScanner:
    """Scans a command, or one of its here-documents, once from the start to the end."""

    def __init__(self, text: str, lookup: Lookup, base: _QuoteState) -> None:
        self.quoted = False
        self._text, self._lookup = text, lookup
        self._position = 0
        self._out: list[str] = []
        self._stack = [base]
        self._cases = [0]
        self._word_begins = True
        self._command_begins = True
        self._heres: list[_HereDocument] = []

    @property
    def at(self) -> _QuoteState:
        """Returns the kind of quoting of the next character."""
        return self._stack[-1]

    def run(self) -> str:
        """Scans the text and returns it with replaced references."""
        while self._position < len(self._text):
            reference = REFERENCE.match(self._text, self._position)
            if reference is not None and reference[1] is not None:
                self._value(reference)
            elif reference is not None:
                self._braces()
            else:
                self._character()
        return "".join(self._out)

    # --- reading

    def _take(self, count: int = 1) -> None:
        """Copies the given number of characters. A reference after a backslash is refused."""
        taken = self._text[self._position : self._position + count]
        self._out.append(taken)
        self._position += len(taken)

    def _push(self, at: _QuoteState) -> None:
        self._stack.append(at)
        self._cases.append(0)
        self._word_begins = self._command_begins = True

    def _pop(self) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
            self._cases.pop()
        self._word_begins = self._command_begins = False

    def _braces(self) -> None:
        """Copies `$${` as `${`, so that the shell and not Gridmill replaces this reference."""
        self._out.append("${")
        self._position += 3
        if self.at not in (_QuoteState.SINGLE, _QuoteState.ANSI, _QuoteState.COMMENT):
            self._push(_QuoteState.BRACES)

    def _character(self) -> None:
        match self.at:
            case _QuoteState.SINGLE:
                self._until("'")
            case _QuoteState.COMMENT:
                self._comment()
            case _QuoteState.ANSI:
                self._escape() if self._sees("\\") else self._until("'")
            case _QuoteState.DOUBLE | _QuoteState.HERE:
                self._inside_double()
            case _QuoteState.BRACES:
                self._inside_braces()
            case _QuoteState.ARITHMETIC:
                self._inside_arithmetic()
            case _:
                self._inside_command()

    def _sees(self, text: str) -> bool:
        return self._text.startswith(text, self._position)

    def _until(self, end: str) -> None:
        if self._sees(end):
            self._pop()
        self._take()

    def _comment(self) -> None:
        if self._sees("\n"):
            self._pop()
            self._line_break()
        else:
            self._take()

    def _escape(self) -> None:
        reference = REFERENCE.match(self._text, self._position + 1)
        if reference is not None and reference[1] is not None:
            raise UnsafeError(
                "a backslash is not allowed before a parameter",
                "For a variable of the shell, write $${NAME}.",
            )
        if reference is not None:  # `$${` stands for a brace of the shell, so the `$` must stay escaped
            self._out.append("\\${")
            self._position += 4
        else:
            self._take(2)
        self._word_begins = self._command_begins = False

    def _expansion(self) -> bool:
        """Returns True if a substitution begins here. Inside a substitution, quoting starts again."""
        if self._sees("$(("):
            self._take(3)
            self._push(_QuoteState.ARITHMETIC)
            self._push(_QuoteState.ARITHMETIC)
        elif self._sees("$("):
            self._take(2)
            self._push(_QuoteState.SUBSTITUTION)
        elif self._sees("`"):
            self._take()
            self._backtick()
        else:
            return False
        return True

    def _backtick(self) -> None:
        if _QuoteState.BACKTICKS not in self._stack:
            return self._push(_QuoteState.BACKTICKS)
        while self.at is not _QuoteState.BACKTICKS:
            self._pop()
        return self._pop()

    def _inside_double(self) -> None:
        if self._sees("\\"):
            self._escape()
        elif not self._expansion():
            self._until('"') if self.at is _QuoteState.DOUBLE else self._take()

    def _inside_braces(self) -> None:
        if self._sees("\\"):
            self._escape()
        elif self._sees('"') or (self._sees("'") and _QuoteState.DOUBLE not in self._stack):
            self._quotes()
        elif not self._expansion():
            self._until("}")

    def _inside_arithmetic(self) -> None:
        if self._expansion():
            return
        if self._sees("("):
            self._push(_QuoteState.ARITHMETIC)
        elif self._sees(")"):
            self._pop()
        self._take()

    def _quotes(self) -> None:
        at = _QuoteState.DOUBLE if self._sees('"') else _QuoteState.SINGLE
        self._take()
        self._push(at)

    def _inside_command(self) -> None:
        """Unquoted."""
        character = self._text[self._position]
        if character == "\\":
            self._escape()
        elif character in "'\"":
            self._quotes()
        elif self._sees("$'"):
            self._take(2)
            self._push(_QuoteState.ANSI)
        elif self._expansion():
            pass
        elif character == "\n":
            self._line_break()
        elif character == "#" and self._word_begins:
            self._push(_QuoteState.COMMENT)
            self._take()
        elif self._sees("<<") and not self._sees("<<<"):
            self._here_begins()
        elif character in "()":
            self._parenthesis()
        elif self._word_begins and (word := _WORD.match(self._text, self._position)):
            self._word(word[0])
        else:
            self._plain(character)

    def _plain(self, character: str) -> None:
        self._take(3 if self._sees("<<<") else 1)
        if character in ";&|":
            self._command_begins = True
        elif not character.isspace() and self._word_begins and character not in "!{":
            self._command_begins = False
        self._word_begins = character.isspace() or character in ";&|<>"

    def _word(self, word: str) -> None:
        if self._command_begins and word == "case":
            self._cases[-1] += 1
        elif self._command_begins and word == "esac" and self._cases[-1]:
            self._cases[-1] -= 1
        self._command_begins = word in _BEFORE_COMMAND
        self._take(len(word))
        self._word_begins = False

    def _parenthesis(self) -> None:
        if self._sees("((") and self._command_begins:
            self._take(2)
            self._push(_QuoteState.ARITHMETIC)
            self._push(_QuoteState.ARITHMETIC)
        elif self._sees("("):
            self._take()
            self._push(_QuoteState.PARENTHESES)
        else:
            self._take()
            # this parenthesis ends the pattern of a `case`, so that the next word is a command
            if self._cases[-1]:
                self._word_begins = self._command_begins = True
            elif self.at in (_QuoteState.SUBSTITUTION, _QuoteState.PARENTHESES):
                self._pop()

    # --- here-documents

    def _here_begins(self) -> None:
        self._take(2)
        match = _DELIMITER.match(self._text, self._position)
        if match is None:
            return
        if REFERENCE.search(match[0]):
            raise UnsafeError(
                "the end word of a here-document cannot be a parameter",
                "Write the end word itself instead of the parameter.",
            )
        self._take(len(match[0]))
        bare = re.sub(r"""\\(.)|['"]""", r"\1", match[2])
        self._heres.append(_HereDocument(delimiter=bare, quoted=bare != match[2], tabs=bool(match[1])))
        self._word_begins = False

    def _line_break(self) -> None:
        self._take()
        self._word_begins = self._command_begins = True
        heres, self._heres = self._heres, []
        for here in heres:
            self._here(here)

    def _here(self, here: _HereDocument) -> None:
        lines = _LINE.findall(self._text[self._position :])
        count = next((n for n, line in enumerate(lines) if _ends(line, here)), len(lines))
        body = "".join(lines[:count])
        inner = _ShellScanner(body, self._lookup, _QuoteState.HERE)
        filled = inner.literal() if here.quoted else inner.run()
        if any(_ends(line, here) for line in _LINE.findall(filled)):
            raise UnsafeError(
                "a line of the value would end the here-document, as it is equal to its end word "
                f"{here.delimiter!r}",
                "Choose another end word.",
            )
        if here.tabs and _leading_tabs(filled) > _leading_tabs(body):
            raise UnsafeError(
                "a value has lines that begin with tabs, which `<<-` would remove",
                "Write `<<` instead of `<<-`.",
            )
        self.quoted = self.quoted or inner.quoted
        self._out.append(filled)
        self._position += len(body)
        if count < len(lines):
            self._take(len(lines[count]))

    def literal(self) -> str:
        """Returns the text of a here-document whose end word is quoted. The shell expands nothing in such a
        text."""

        def value(match: re.Match[str]) -> str:
            if match[1] is None:
                return "${"
            value = self._lookup(match)
            return match[0] if value is None else _one(value, match, "a here-document")

        return REFERENCE.sub(value, self._text)

    # --- writing

    def _value(self, reference: re.Match[str]) -> None:
        value = self._lookup(reference)
        self._position = reference.end()
        if value is None:
            self._out.append(reference[0])
        elif _is_raw(reference):
            self._out.append(value if isinstance(value, str) else " ".join(value))
        else:
            self._out.append(self._written(value, reference))
        self._word_begins = self._command_begins = False

    def _written(self, value: Words, reference: re.Match[str]) -> str:
        if self.at in _OPEN and self.at is not _QuoteState.BACKTICKS:
            return self._as_words(value, reference)
        if self.at is _QuoteState.COMMENT:
            return " ".join((value if isinstance(value, str) else " ".join(value)).split("\n"))
        one = _one(value, reference, str(self.at))
        self.quoted = self.quoted or not _PLAIN.fullmatch(one)
        match self.at:
            case _QuoteState.SINGLE:
                return one.replace("'", "'\"'\"'")
            case _QuoteState.DOUBLE | _QuoteState.HERE:
                return self._after_variable() + _escaped(one, _ESCAPED[self.at])
            case _QuoteState.ARITHMETIC:
                return _number(one, reference)
        return self._if_plain(one, reference)

    def _as_words(self, value: Words, reference: re.Match[str]) -> str:
        if isinstance(value, str):
            return self._as_word(value)
        before, after = self._tail()[-1:], self._text[self._position : self._position + 1]
        if not ((not before or before in " \t\n;&|(") and (not after or after in " \t\n;&|)<>")):
            raise UnsafeError(
                f"`{reference[0]}` is a list and cannot be a part of a word",
                "Put spaces around the parameter, so that each item becomes a word.",
            )
        self.quoted = True
        return " ".join(_quoted(one) for one in value)

    def _as_word(self, value: str) -> str:
        following = self._text[self._position : self._position + 1]
        descriptor = value.isdigit() and following in ("<", ">")
        plain = _PLAIN.fullmatch(value) and not descriptor and value not in _KEYWORDS
        tail = self._tail()
        if plain and not _VARIABLE.search(tail):
            return value
        self.quoted = True
        return ('""' if tail.endswith("$") else "") + _quoted(value)

    def _tail(self) -> str:
        """Returns the last characters of the command that was written so far."""
        return "".join(self._out[-80:])

    def _after_variable(self) -> str:
        """Returns two quotes if the value would otherwise become part of the name of a shell variable
        directly before the value."""
        if not _VARIABLE.search(self._tail()):
            return ""
        if self.at is _QuoteState.HERE:
            raise UnsafeError(
                "a parameter directly after a variable of the shell is ambiguous",
                "Write the variable as $${NAME}.",
            )
        return '""'

    def _if_plain(self, value: str, reference: re.Match[str]) -> str:
        if _PLAIN.fullmatch(value) and not _VARIABLE.search(self._tail()):
            return value
        raise UnsafeError(
            f"`{reference[0]}` is {value!r}, which cannot be written safely in {self.at}",
            "Write $(...) instead of backticks."
            if self.at is _QuoteState.BACKTICKS
            else _OUTSIDE % reference[1].partition(":")[0],
        )


def _ends(line: str, here: _HereDocument) -> bool:
    bare = line.removesuffix("\n")
    return (bare.lstrip("\t") if here.tabs else bare) == here.delimiter


def _leading_tabs(text: str) -> int:
    return sum(len(line) - len(line.lstrip("\t")) for line in _LINE.findall(text))


def _is_raw(reference: re.Match[str]) -> bool:
    return reference[1].partition(":")[2] == "raw"


def _one(value: Words, reference: re.Match[str], where: str) -> str:
    if isinstance(value, str):
        return value
    raise UnsafeError(
        f"`{reference[0]}` is a list and cannot be used within {where}",
        "Move the parameter out of the quotes, so that each item becomes a word.",
    )


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\"'\"'") + "'"


def _escaped(value: str, special: str) -> str:
    return "".join(f"\\{letter}" if letter in special else letter for letter in value)


def _number(value: str, reference: re.Match[str]) -> str:
    if _NUMBER.fullmatch(value):
        return value
    raise UnsafeError(
        f"`{reference[0]}` is {value!r}, but arithmetic needs whole numbers",
        "For a subshell, write $( (...) ).",
    )
