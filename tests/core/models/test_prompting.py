"""How a prompt ended is told from what the template wrote, and arguments reach templates that read them."""

import json

import pytest

from sequoia_core.command_line.inputs import encoded
from sequoia_core.command_line.main import main
from sequoia_core.files.prompt_rows import Chat
from sequoia_core.models.chat import PromptRefused, Turn, chat_text
from sequoia_core.models.prompting import Prompting, encode_prompt, parsed_arguments
from tests.chat_pair import CHATML, NO_SYSTEM, Reader, chat_tokenizer, save_chat_pair

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
def test_the_record_says_how_the_prompt_ended(template, arguments, ending):
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


def test_arguments_are_given_as_words_or_json():
    given = ["enable_thinking=False", "effort=very low", "budget = 12", 'names=["a", "b"]', "note=a=b", "nothing=null"]
    assert parsed_arguments(given) == {
        "enable_thinking": False, "effort": "very low", "budget": 12, "names": ["a", "b"], "note": "a=b",
        "nothing": None,
    }  # fmt: skip
    template = "{{ messages[0].content }} {{ effort }} {{ names[1] }} {{ budget + 1 }}"
    wanted = {"effort": "low", "names": ["a", "b"], "budget": 12}
    assert chat_text(chat_tokenizer(template), [Turn("user", "x")], wanted) == "x low b 13"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["enable_thinking"], "'enable_thinking': found no short name=value, expected such as enable_thinking=false"),
        (["a=1", "a=2"], "'a=2': found it twice"),
        (["two words=1"], "'two words': found no name"),
        (["messages=1"], "'messages': found a name that the program itself gives, expected such as enable_thinking"),
    ],
)
def test_what_is_no_argument_is_refused_in_one_line(given, said):
    with pytest.raises(ValueError, match=f"^template argument .*{said}") as caught:
        parsed_arguments(given)
    assert "\n" not in str(caught.value)


def test_an_argument_that_nobody_reads_is_refused():
    with pytest.raises(ValueError, match="template argument thinking: found a chat template that does not read it"):
        encode_prompt(Reader(chat_tokenizer(ASKED)), "x", Prompting(arguments={"thinking": True}))
    for tokenizer, chat in ((chat_tokenizer(None), None), (chat_tokenizer(ASKED), False)):
        with pytest.raises(ValueError, match="enable_thinking: found it for prompts that go through no chat template"):
            encode_prompt(Reader(tokenizer), "x", Prompting(chat, {"enable_thinking": True}))


CHAT = Chat((("system", "Be terse."), ("user", "Why?")))


def test_the_roles_of_a_chat_reach_the_template_or_are_refused():
    tokenizer = chat_tokenizer(CHATML)
    turns = [Turn(role, text) for role, text in CHAT.turns]
    assert tokenizer.decode(encode_prompt(Reader(tokenizer), CHAT)) == chat_text(tokenizer, turns)
    for tokenizer, chat in ((chat_tokenizer(None), None), (chat_tokenizer(CHATML), False)):
        with pytest.raises(PromptRefused, match="prompt 'system: Be terse.*found turns of system, user"):
            encode_prompt(Reader(tokenizer), CHAT, Prompting(chat))
    with pytest.raises(PromptRefused, match="prompt 'system: Be terse.*refuses a system turn"):
        encode_prompt(Reader(chat_tokenizer(NO_SYSTEM)), CHAT)


DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "prompt", "role"),
    [(DROPS_SYSTEM, CHAT, "system"), ("Hello! {{ messages[0].role }}", "Hello", "user"), (DROPS_SYSTEM, "Why?", "")],
)
def test_a_turn_that_the_template_leaves_out_is_named(template, prompt, role):
    reader = Reader(chat_tokenizer(template))
    if not role:
        assert encode_prompt(reader, prompt)
        return
    with pytest.raises(PromptRefused, match=f"found a chat template that leaves out the text of the {role}, expected"):
        encode_prompt(reader, prompt)


def test_prompts_that_the_template_refuses_are_left_out_and_named(capsys):
    reader = Reader(chat_tokenizer(NO_SYSTEM))
    assert encoded(reader, ["a", CHAT, "b"], Prompting()) == [encode_prompt(reader, text) for text in "ab"]
    said = capsys.readouterr().err
    assert said.startswith("1 of 3 prompts are left out") and "prompt 'system: Be terse." in said
    with pytest.raises(PromptRefused, match="refuses a system turn"):
        encoded(reader, [CHAT, CHAT], Prompting())


@pytest.mark.slow
def test_measure_and_generate_record_it(tmp_path, capsys):
    target, draft = save_chat_pair(tmp_path, UNASKED)
    pair = ["--target", target, "--draft", draft, "--max-new-tokens", "4", "--json"]
    measure = ["measure", *pair, "--prompts", f"{tmp_path}/prompts.txt", "--out", f"{tmp_path}/v.json"]
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    asked = ["--template-arg", "enable_thinking=true"]
    wanted = {"prompt_ending": "chat, thinking on", "template_arguments": {"enable_thinking": True}}
    assert main([*measure, *asked]) == 0
    assert json.loads(capsys.readouterr().out).items() >= wanted.items()
    assert json.loads((tmp_path / "v.json").read_text())["meta"].items() >= wanted.items()
    assert main(["generate", *pair, "--prompt", "one", *asked]) == 0
    assert json.loads(capsys.readouterr().out).items() >= wanted.items()
    assert main([*measure[:-2], "--resume", f"{tmp_path}/v.json"]) == 2
    assert "found 'chat, thinking on' for prompt_ending, expected 'chat, thinking closed by" in capsys.readouterr().err
