# SPDX-License-Identifier: Apache-2.0
"""One spelling for each notation: Unicode, LaTeX variants, spacing and decoration are settled here.

The result is still text. Nothing is dropped that could change a value; what only changes the looks
(sizes, thin spaces, dollar signs around mathematics, bold) is.
"""

from __future__ import annotations

import re
import unicodedata

_UNICODE = {
    **dict.fromkeys("−–—‒﹣－‐‑", "-"),
    **dict.fromkeys("\u00a0\u2007\u2009\u202f\u200a\u2006", "\\,"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("‘’ʹ′", "'"),
    "″": "''",
    "×": " \\times ",
    "·": " \\cdot ",
    "⋅": " \\cdot ",
    "∙": " \\cdot ",
    "÷": " \\div ",
    "∕": "/",
    "⁄": "/",
    "≤": " \\le ",
    "⩽": " \\le ",
    "≥": " \\ge ",
    "⩾": " \\ge ",
    "≠": " \\ne ",
    "≡": " \\equiv ",
    "≈": " \\approx ",
    "∞": " \\infty ",
    "√": " \\sqrt ",
    "∅": " \\emptyset ",
    "∪": " \\cup ",
    "∩": " \\cap ",
    "∈": " \\in ",
    "±": " \\pm ",
    "∓": " \\mp ",
    "∛": "\\sqrt[3] ",
    "∜": "\\sqrt[4] ",
    "⌊": "\\lfloor ",
    "⌋": "\\rfloor ",
    "⌈": "\\lceil ",
    "⌉": "\\rceil ",
    "∣": "|",
    "。": ".",
    "°": "^\\circ ",
    "˚": "^\\circ ",
    "º": "^\\circ ",
    "…": "\\ldots ",
    "ℝ": " \\mathbb{R} ",
    "ℤ": " \\mathbb{Z} ",
    "ℕ": " \\mathbb{N} ",
    "∖": " \\setminus ",
    "⟨": "\\langle ",
    "⟩": "\\rangle ",
    "“": '"',
    "”": '"',
    "€": "\\text{€}",
    "£": "\\text{£}",
    "¥": "\\text{¥}",
    "₹": "\\text{₹}",
    "¢": "\\text{¢}",
}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_NON_ASCII = re.compile(r"[^\x00-\x7f]")

_DELIMITERS = re.compile(r"(?<!\\)\\[\[\]()]|(?<!\\)\$")
_SIZES = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|"
    r"checkmark|blacksquare|therefore|mathstrut|strut|hfill|noindent|centering|Large|large|LARGE|huge|Huge|small|tiny|scriptsize|footnotesize|normalsize|bf|rm|it|"
    r"sf|tt|bfseries)(?![a-zA-Z])\s?"
)
_NULL_DELIMITER = re.compile(r"\\(?:left|right)\s*\.")
_SPACES = re.compile(r"(?<!\\)\\(?:[,;:! >]|quad|qquad|thinspace|enspace|space|hspace\{[^{}]*\})|~")
_GROUPED = re.compile(r"(?<=\d)(?:\\[,;:!> ]|,\\!\s*|\\!,|\{,\}(?:\\!)?|~)+(?=\d{3}(?!\d))")
_BRACED_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
"""Left over from grouping: not in front of three digits."""
_SPELLING = {
    "dfrac": "frac",
    "tfrac": "frac",
    "cfrac": "frac",
    "nicefrac": "frac",
    "sfrac": "frac",
    "dbinom": "binom",
    "tbinom": "binom",
    "lbrace": "{",
    "rbrace": "}",
    "varnothing": "emptyset",
    "leq": "le",
    "leqslant": "le",
    "leqq": "le",
    "geq": "ge",
    "geqslant": "ge",
    "geqq": "ge",
    "neq": "ne",
    "land": "wedge",
    "lor": "vee",
    "simeq": "approx",
    "backslash": "setminus",
    "smallsetminus": "setminus",
    "R": "mathbb{R}",
    "reals": "mathbb{R}",
    "Z": "mathbb{Z}",
    "N": "mathbb{N}",
    "textdollar": "$",
    "dots": "ldots",
    "cdots": "ldots",
    "dotsc": "ldots",
    "bigcup": "cup",
    "bigcap": "cap",
    "overrightarrow": "vec",
    "tg": "tan",
    "ctg": "cot",
    "cotg": "cot",
    "arctg": "arctan",
    "arcctg": "arccot",
    "cosec": "csc",
}
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_NAMED_FUNCTION = re.compile(
    r"\\(?:operatorname\*?|mathrm|text)\s*\{\s*(arcc?tg|c?tg|cotg|cosec)\s*\}"
)
_SET_NAME = re.compile(r"\\(?:mathbf\s*(?:\{\s*([RZ])\s*\}|([RZ])\b)|mathbb\s*([A-Z])\b)")
_SPELLED_UNION = re.compile(
    r"([(\[][^()\[\]]*,[^()\[\]]*[)\]])\s*(?:\\(?:text|mathrm)\s*\{\s*U\s*\}|U)\s*"
    r"(?=[(\[][^()\[\]]*,)"
)
"""An interval, and behind it a letter that stands for the sign of a union."""
_BARE = {"lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "colon": ":"}
_BARE |= dict.fromkeys(("vert", "lvert", "rvert", "mid"), "|")
_BARE |= dict.fromkeys(("degree", "textdegree"), "^\\circ ")
_BARE |= {"lt": "<", "gt": ">", "div": "/", "ast": "*", "cdotp": "\\cdot ", "minus": "-"}
_COLOUR = re.compile(r"\\(?:colorbox|textcolor|color)\s*(?:\{[^{}]*\}|[a-z]+)")
_PHANTOM = re.compile(r"\\[hv]?phantom\{[^{}]*\}")
_LABEL = re.compile(r"\\(?:tag\*?|label)\s*\{[^{}]*\}")
_EMPTY_GROUP = re.compile(r"(?<![\\}\w])\{\s*\}")
_BRACED_SIGN = re.compile(r"\{\s*([-+])\s*\}")
_LETTER_DEGREE = re.compile(r"(?<=\d)\s*\^\s*(?:\{\s*o\s*\}|o(?![a-zA-Z]))")
_DISPLAY = r"(?:aligned|align|alignedat|gathered|gather|split|equation|cases)\*?"
_DISPLAYED = re.compile(rf"\\begin\{{({_DISPLAY})\}}(.*)\\end\{{\1\}}", re.DOTALL)
_SYSTEM = re.compile(
    r"\\left\s*\\\{\s*\\begin\{(array|aligned|matrix|gathered)\}(?:\s*\{[lcr| ]+\})?(.*)"
    r"\\end\{\1\}\s*\\right\s*\.",
    re.DOTALL,
)
"""What ``cases`` looks like where it is put together by hand."""
_ROW_END = re.compile(r"\\\\(?:\s*\[[^\]]*\])?")
_TEXT = r"\\(?:text|textrm|mathrm|mbox|textbf)\s*"
_ORDINAL = re.compile(
    r"(?<=\d)(?:(?:st|nd|rd|th)|\s*\^\s*\{\s*(?:st|nd|rd|th)\s*\}|"
    rf"\s*(?:\^\s*)?(\{{\s*)?(?:{_TEXT}|\\textsuperscript\s*)\{{\s*(?:st|nd|rd|th)\s*\}}(?(1)\s*\}}))(?![A-Za-z])"
)
_PRIMES = re.compile(r"\s*\^\s*(?:\{\s*((?:\\prime\s*)+)\}|\\prime(?![a-zA-Z]))")
_MINUTES = re.compile(
    r"(\d+)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)\s*([0-5]?\d)\s*'"
    r"(?:\s*([0-5]?\d(?:\.\d+)?)\s*(?:''|\"))?(?![\w'])"
)
"""Degrees with minutes and perhaps seconds of arc."""
_NOT_EQUAL = re.compile(r"\\not\s*=")
_UNIT_FRACTION = re.compile(
    rf"\\frac\s*\{{\s*{_TEXT}\{{([A-Za-z ]+)\}}\s*\}}\s*\{{\s*{_TEXT}\{{([A-Za-z ]+)\}}"
    r"(\s*\^\s*\{?\s*[23]\s*\}?)?\s*\}"
)
_ABBREVIATION = re.compile(r"(?<=[A-Za-z]{2})\.(?=[\s}])")
_PER_CENT = re.compile(r"\bper cent\b", re.IGNORECASE)
_TIMES_POWER = re.compile(r"(?<=[\d.)}])\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_COUNT = r"(?:\{\s*(\d+|[a-z])\s*\}|(\d+|[a-z]))"
_COMBINATIONS = re.compile(
    rf"((?:^|[=+*/(,\[-]|\\times|\\cdot)\s*)[\^_]\s*{_COUNT}\s*"
    rf"(?:C|{_TEXT}\{{\s*C\s*\}})\s*_\s*{_COUNT}(?!\w)"
)
"""The number of choices with the larger count as a prefix: ^5C_2."""
_CHOOSE = re.compile(
    rf"(?<![\w.])(\d+|[a-z])\s*(?:{_TEXT}\{{\s*choose\s*\}}|(?<=\s)choose(?=\s))\s*(\d+|[a-z])(?![\w.])"
)
_APOSTROPHES = re.compile(r"(?<![\d.'])[1-9]\d{0,2}(?:'\d{3})+(?![\d'])")
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:(?:final|correct)\s+)?"
    r"(?:answer|result)(?:\s+is)?(?:(?<=is)\s|\s*:)\s*(?=\S)",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(r"(?:negative|minus)\s+(?=[\d.(\\])", re.IGNORECASE)
_LEADING_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox|textbf)\s*\{([^{}\\$]*)\}")
_DECORATION = "*_`\"' \t\r\n"


def _letter(match: re.Match[str]) -> str:
    """ASCII for a character outside it: Greek letters, vulgar fractions, full-width forms."""
    character = match.group()
    if character in _UNICODE:
        return _UNICODE[character]
    name = unicodedata.name(character, "")
    if name.startswith("GREEK "):
        letter = name.rsplit(" ", 1)[-1].lower()
        return f"\\{letter.capitalize() if 'CAPITAL' in name else letter} "
    if name.startswith("VULGAR FRACTION"):
        top, _, bottom = unicodedata.normalize("NFKC", character).partition("\u2044")
        return f"\\frac{{{top}}}{{{bottom}}}"
    return unicodedata.normalize("NFKC", character)


def _to_ascii(text: str) -> str:
    text = _SUPERSCRIPT_RUN.sub(lambda m: f"^{{{m.group().translate(_SUPERSCRIPTS)}}}", text)
    text = _SUBSCRIPT_RUN.sub(lambda m: f"_{{{m.group().translate(_SUBSCRIPTS)}}}", text)
    return _NON_ASCII.sub(_letter, text)


def _spell(match: re.Match[str]) -> str:
    name = match.group(1)
    if name in _BARE:
        return _BARE[name]
    return "\\" + _SPELLING.get(name, name)


def _combinations(match: re.Match[str]) -> str:
    before, *counts = match.groups()
    larger, smaller = (count for count in counts if count is not None)
    return f"{before}\\binom{{{larger}}}{{{smaller}}}"


def _set_name(match: re.Match[str]) -> str:
    return f"\\mathbb{{{match[1] or match[2] or match[3]}}}"


def _strip_decoration(text: str) -> str:
    """Without bold marks, quotes and closing punctuation around the whole."""
    previous = ""
    while text != previous:
        previous = text
        text = text.strip(_DECORATION)
        text = re.sub(r"(?:[.,;:]|\\)+$", "", text)
        text = re.sub(r"^[,;:]+", "", text)
    return text


def _displayed(text: str) -> str:
    """The lines of a display environment as a list; those of a definition by cases stay."""
    plain = _strip_decoration(_DELIMITERS.sub(" ", _SIZES.sub("", text)))
    display = _DISPLAYED.fullmatch(plain)
    if display is None or (display.group(1) == "cases" and "&" in display.group(2)):
        return text
    joined = ""
    for row in _ROW_END.split(display.group(2)):
        line = row.replace("&", " ").strip(" \t\r\n,")
        # A line that begins with its sign goes on with the one before.
        joined += (" " if not joined or line.startswith("=") else ", ") + line if line else ""
    return joined


def _in_signs(text: str) -> str:
    """Without words before the value: "the answer is", "negative" for the sign."""
    plain = text
    if opening := _LEADING_TEXT.match(text):
        plain = opening.group(1) + " " + text[opening.end() :]
    if lead := _LEAD.match(plain):
        text = plain = plain[lead.end() :]
    return "-" + plain[sign.end() :] if (sign := _NEGATIVE.match(plain)) else text


def clean(text: str) -> str:
    """The answer text in one spelling; empty if nothing is left."""
    if not text.isascii():
        text = _to_ascii(text)
    if "\\begin" in text:
        text = _displayed(_SYSTEM.sub(r"\\begin{cases}\2\\end{cases}", text))
    if "\\" in text:
        text = _NULL_DELIMITER.sub("", text)
        text = _BRACED_COMMA.sub(",", _GROUPED.sub("", text))
        text = _LABEL.sub("", _PHANTOM.sub("", _COLOUR.sub("", text)))
        text = _SIZES.sub("", text)
        text = _COMMAND.sub(_spell, _NAMED_FUNCTION.sub(r"\\\1 ", text))
        text = _SET_NAME.sub(_set_name, text)
        text = _UNIT_FRACTION.sub(r"\\text{ \1/\2}\3", text)
        text = _PRIMES.sub(lambda m: "'" * max((m.group(1) or "").count("p"), 1), text)
        text = _NOT_EQUAL.sub(r"\\ne ", text)
    if "..." in text:
        text = text.replace("...", "\\ldots ")
    if "{,}" in text:
        text = _BRACED_COMMA.sub(",", _GROUPED.sub("", text))
    text = _PER_CENT.sub("percent", _ABBREVIATION.sub("", _ORDINAL.sub("", text)))
    text = _DELIMITERS.sub(" ", text)
    text = _EMPTY_GROUP.sub(" ", text)
    text = _BRACED_SIGN.sub(r"\1", text)
    if "U" in text:
        text = _SPELLED_UNION.sub(r"\1 \\cup ", text)
    text = _LETTER_DEGREE.sub(r"^\\circ ", text)
    text = _SPACES.sub(" ", text)
    text = _MINUTES.sub(r"(\1+\2/60+0\3/3600)^\\circ ", text)
    text = _TIMES_POWER.sub(r" \\times ", text)
    if "C" in text:
        text = _COMBINATIONS.sub(_combinations, text.strip())
    if "choose" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _APOSTROPHES.sub(lambda match: match.group().replace("'", ""), text)
    return " ".join(_strip_decoration(_in_signs(text.strip())).split())
