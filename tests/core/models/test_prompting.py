"""The ending of a prompt is derived from the rendered template, and arguments reach templates that use them."""

import pytest

from sequoia_core.command_line.inputs import encode_prompts
from sequoia_core.files.prompt_rows import Chat
from sequoia_core.models.chat import PromptRefused, Turn, chat_text
from sequoia_core.models.prompting import Prompting, encode_prompt, parse_template_arguments
from tests.chat_pair import CHATML, NO_SYSTEM, Reader, chat_tokenizer

CLOSED = "<think>\n\n</think>\n\n"
ASKED = CHATML + "{% if enable_thinking is defined and enable_thinking is false %}" + CLOSED + "{% endif %}"
UNASKED = CHATML + "{% if not enable_thinking %}" + CLOSED + "{% endif %}"
ALWAYS = CHATML + "<think>\n"
BY_SYSTEM = "{% if thinking %}Think first.{% endif %}" + CHATML
TURNS = [Turn("user", "What does </think> mean?")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "arguments", "ending"),
    [
        (None, {}, "raw"),
        (CHATML, {}, "chat"),
        (ALWAYS, {}, "chat, thinking on"),
        (ASKED, {}, "chat, thinking on"),
        (ASKED, {"enable_thinking": False}, "chat, thinking off"),
        (UNASKED, {}, "chat, thinking closed by default"),
        (UNASKED, {"enable_thinking": True}, "chat, thinking on"),
        (BY_SYSTEM, {"thinking": True}, "chat, thinking on"),
    ],
)
def test_the_record_describes_the_prompts_ending(template, arguments, ending):
    tokenizer = chat_tokenizer(template)
    wanted = {"prompt_ending": ending, "template_arguments": arguments}
    prompting = Prompting(arguments=arguments)
    assert prompting.record(tokenizer) == wanted
    if template is not None:
        assert prompting.record(tokenizer, TURNS) == wanted
        text = tokenizer.decode(encode_prompt(Reader(tokenizer), TURNS[0].text, prompting))
        assert text == chat_text(tokenizer, TURNS, arguments)
        assert text.endswith(CLOSED) == ("closed" in ending or ("enable_thinking" in arguments and "off" in ending))
    assert Prompting(False).record(tokenizer)["prompt_ending"] == "raw"


def test_arguments_are_parsed_as_json_or_text():
    given = ["enable_thinking=False", "effort=very low", "budget = 12", 'names=["a", "b"]', "note=a=b", "nothing=null"]
    assert parse_template_arguments(given) == {
        "enable_thinking": False,
        "effort": "very low",
        "budget": 12,
        "names": ["a", "b"],
        "note": "a=b",
        "nothing": None,
    }
    template = "{{ messages[0].content }} {{ effort }} {{ names[1] }} {{ budget + 1 }}"
    wanted = {"effort": "low", "names": ["a", "b"], "budget": 12}
    assert chat_text(chat_tokenizer(template), [Turn("user", "x")], wanted) == "x low b 13"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["enable_thinking"],
            "'enable_thinking': found invalid text, expected a short name=value such as",
        ),
        (["a=1", "a=2"], "'a=2': found a repeated name"),
        (["two words=1"], "'two words': found an invalid name"),
        (["messages=1"], "'messages': found a reserved name, expected a name such as enable_thinking"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(given, said):
    with pytest.raises(ValueError, match=f"^template argument .*{said}") as caught:
        parse_template_arguments(given)
    assert "\n" not in str(caught.value)


def test_an_unused_argument_is_refused():
    with pytest.raises(ValueError, match="template argument thinking: found a chat template that does not use it"):
        encode_prompt(Reader(chat_tokenizer(ASKED)), "x", Prompting(arguments={"thinking": True}))
    for tokenizer, chat in ((chat_tokenizer(None), None), (chat_tokenizer(ASKED), False)):
        with pytest.raises(ValueError, match="enable_thinking: found with prompts that use no chat template"):
            encode_prompt(Reader(tokenizer), "x", Prompting(chat, {"enable_thinking": True}))


CHAT = Chat((("system", "Be terse."), ("user", "Why?")))


def test_the_roles_of_a_chat_reach_the_template_or_are_refused():
    tokenizer = chat_tokenizer(CHATML)
    turns = [Turn(role, text) for role, text in CHAT.turns]
    assert tokenizer.decode(encode_prompt(Reader(tokenizer), CHAT)) == chat_text(tokenizer, turns)
    for tokenizer, chat in ((chat_tokenizer(None), None), (chat_tokenizer(CHATML), False)):
        with pytest.raises(PromptRefused, match="prompt 'system: Be terse.*found turns .system, user"):
            encode_prompt(Reader(tokenizer), CHAT, Prompting(chat))
    with pytest.raises(PromptRefused, match="prompt 'system: Be terse.*refuses a system turn"):
        encode_prompt(Reader(chat_tokenizer(NO_SYSTEM)), CHAT)


DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "prompt", "role"),
    [(DROPS_SYSTEM, CHAT, "system"), ("Hello! {{ messages[0].role }}", "Hello", "user"), (DROPS_SYSTEM, "Why?", "")],
)
def test_a_turn_that_the_template_drops_is_refused(template, prompt, role):
    reader = Reader(chat_tokenizer(template))
    if not role:
        assert encode_prompt(reader, prompt)
        return
    with pytest.raises(PromptRefused, match=f"found a chat template that omits the text of the {role}, expected"):
        encode_prompt(reader, prompt)


def test_refused_prompts_are_skipped_with_a_warning(capsys):
    reader = Reader(chat_tokenizer(NO_SYSTEM))
    assert encode_prompts(reader, ["a", CHAT, "b"], Prompting()) == [encode_prompt(reader, text) for text in "ab"]
    said = capsys.readouterr().err
    assert said.startswith("1 of 3 prompts were skipped") and "prompt 'system: Be terse." in said
    with pytest.raises(PromptRefused, match="refuses a system turn"):
        encode_prompts(reader, [CHAT, CHAT], Prompting())
