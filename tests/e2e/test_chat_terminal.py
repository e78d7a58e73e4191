# SPDX-License-Identifier: Apache-2.0
"""A person at a terminal: weir chat, through a pseudo-terminal."""
import pytest
import tiny_model
from terminal import terminal  # noqa: F401 (a fixture)

ONE_TURN = "{% if messages|length > 1 %}{{ raise_exception('this model answers once') }}{% endif %}{{ messages[0]['content'] }}"
LETTER_A = 1 + tiny_model.byte_symbols().index("a")


def test_conversation(terminal, tmp_path):
    """The model says "a" without end, and its template refuses a second turn, which shows what /undo forgets."""
    model = tiny_model.write(tmp_path / "chat.gguf", "Q8_0", context=131072, template=ONE_TURN)
    chat = terminal("chat", model, "-c", 100_000, "--memory", "1G", "--ignore-eos", "--logit-bias", f"{LETTER_A}=1000")

    def say(line):
        chat.expect_prompt()
        chat.type(line + b"\r")

    chat.expect(rb"ready; /help")
    say(b"/help")
    chat.expect(rb"/undo .*/bye .*\n")
    say(b"/set temp 0")
    say(b"/set")
    assert chat.expect(rb"temp +([0-9.]+)\r\n.*special *\r\n")[1] == b"0"
    say(b"/set tempp 0")
    chat.expect(rb"weir: error: no setting 'tempp'; did you mean 'temp'\?")
    say(b"/quit")
    chat.expect(rb"weir: error: no command '/quit'; did you mean /bye\?")
    say(b"/set n 8")
    chat.expect(rb"weir: n is 8\r\n")
    say(b"hello")
    chat.expect(rb"\n(a{8})\r\n")
    say(b"and now")
    chat.expect(rb"weir: error: .*this model answers once")
    say(b"/stats")
    chat.expect(rb"prefill +\d+ tokens.*\n")
    say(b"/undo")
    chat.expect(rb"the last question and its answer are forgotten\r\n")
    say(b"/undo")
    chat.expect(rb"there is nothing to undo\r\n")
    say(b"/clear")
    chat.expect(rb"the conversation is forgotten\r\n")
    say(b"/set n")
    chat.expect(rb"n is the default again\r\n")
    say(b"hello again")
    chat.expect(rb"\na{50}")
    chat.type(b"\x03")
    chat.expect(rb"interrupted\r\n")
    chat.expect_prompt()
    chat.type(b"\x03")
    chat.expect(rb"/bye or Ctrl-D ends")
    say(b"/undo")
    say(b"/set n 3")
    say(b"once more")
    chat.expect(rb"\na{3}\r\n")
    chat.expect_prompt()
    chat.type(b"\x04")
    assert chat.end() == 0, chat.shown[-2000:]


@pytest.mark.parametrize("last", (b"/bye\r", b"\x04"))
def test_end(terminal, tmp_path, last):
    chat = terminal("chat", tiny_model.write(tmp_path / "chat.gguf", "Q8_0", template=ONE_TURN))
    chat.expect_prompt()
    chat.type(last)
    assert chat.end() == 0, chat.shown
