import pytest

from gateway.prompts.template import ChatTemplate, TemplateRefusal
from tests.fakes.tiny_tokenizer import CHATML

USER = {"role": "user", "content": "Hi"}


def render(source: str, *messages: dict[str, str], **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render(messages)


def test_the_prompt_ends_where_the_answer_begins() -> None:
    assert render(CHATML, {"role": "system", "content": "S"}, USER) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_blocks_are_trimmed() -> None:
    assert (
        render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n", USER)
        == "Hi\n"
    )


def test_special_tokens_are_there_by_name() -> None:
    assert render(
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", USER, bos_token="<s>", eos_token="</s>"
    ) == ("<s>Hi</s>")


def test_loop_controls_and_generation_blocks_work() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert render(source, USER, {"role": "user", "content": "no"}) == "Hi"


def test_tojson_leaves_characters_as_they_are() -> None:
    assert render("{{ messages[0] | tojson }}", {"role": "user", "content": "<ü> & 'q'"}) == (
        '{"role": "user", "content": "<ü> & \'q\'"}'
    )
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_a_date_can_be_asked_for() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_what_the_template_raises_is_told_to_the_client() -> None:
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{ messages[0].name.first }}", "{{ 1 / 0 }}", "{{ messages + 1 }}", "{{ messages[7].x.y }}"]
)
def test_messages_that_the_template_trips_over_are_refused_without_its_details(source: str) -> None:
    with pytest.raises(TemplateRefusal, match="cannot render these messages"):
        render(source, USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append({}) }}",
        "{{ self.__init__.__globals__ }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        render(source, USER)


def test_roles_are_those_that_the_template_names() -> None:
    roles = ChatTemplate("{% if messages[0]['role'] == 'tool' %}x{% endif %}{{ '<|end|>' }}{{ 'Big' }}", {}).roles
    assert roles == {"system", "user", "assistant", "tool"}


def test_rendering_leaves_the_messages_alone() -> None:
    message = dict(USER)
    render("{% for m in messages %}{{ m.content }}{% endfor %}", message)
    assert message == USER
