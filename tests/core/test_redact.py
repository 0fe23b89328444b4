"""Secrets by value and by form become •••; what only looks alike stays."""

import base64
import re
import time
import urllib.parse

import pytest

from distdl_jupyter.core.redact import MASK, Redactor, arguments, is_secret, spec, text
from distdl_jupyter.core.spec import Captured, JobSpec, Source

HEX40 = "0123456789abcdef0123456789abcdef01234567"
SECRETS = {
    "https://a.blob.core.windows.net/c/x?sv=2021&sig=abcDEF123%2Bxyz789QQQQ%3D&se=1": "abcDEF123%2Bxyz789QQQQ%3D",
    "AccountName=a;AccountKey=abcdefghijklmnop12/+==;EndpointSuffix=x": "abcdefghijklmnop12",
    "SharedAccessSignature=sv=2021-01&ss=b&sig=abcdEFGH1234abcdEFGH": "abcdEFGH1234abcdEFGH",
    "Authorization: Bearer abcdefghij0123456789.xyz": "abcdefghij0123456789",
    "authorization: Basic dXNlcjpwYXNzd29yZA==": "dXNlcjpwYXNzd29yZA",
    "got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.SflKxwRJSMeKKF2QT4 back": "eyJhbGciOiJIUzI1NiJ9",
    "postgres://bob:hunter2@db.example/x": "hunter2",
    "git clone https://:x0auth1234@github.com/a/b": "x0auth1234",
    "login hf_abcdefghijABCDEFGHIJ1234": "hf_abcdefghijABCDEFGHIJ1234",
    "gho_abcdefghijABCDEFGHIJ1234abcdefgh12": "abcdefghijABCDEFGHIJ",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwx": "11ABCDEFG0abcdefghijkl",
    "key sk-proj-abcdefghij0123456789abcd": "abcdefghij0123456789",
    "AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7EXAMPLE",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalrXUtnFEMI",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\ndef\n-----END RSA PRIVATE KEY-----": "MIIEabc",
    "password=correcthorse": "correcthorse",
    '{"password": "hunter2000", "lr": 0.1}': "hunter2000",
    '"{\\"password\\": \\"hunter2000\\"}"': "hunter2000",
    "{'api_key': 'abcd1234efgh'}": "abcd1234efgh",
    'os.environ["HF_TOKEN"] = "abcd1234efgh"': "abcd1234efgh",
    "python train.py --password correct1horse --lr 0.1": "correct1horse",
    "--api-key=abcd1234efgh": "abcd1234efgh",
    f"WANDB_API_KEY: {HEX40}": HEX40,
    "client_secret=abcdefghij&grant=x": "abcdefghij",
    "Schlüssel ü password=pässw0rd12": "pässw0rd12",
}
HARMLESS = """
token=5 tokens=1024 tokens: 12345678
Tokens/s: 123456.78 time per token: 12.345ms/iter, loss per token=1.234567e-05
eos_token='<|endoftext|>' pad_token=[PAD] unk_token="</s>" mask_token: <mask>
pad_token_id=50256 max_new_tokens=10241024 next token: 'Ġthe' token 12345678 of 99999999
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased1", use_fast=True, token=token)
Setting `pad_token_id` to `eos_token_id`:50256 for open-end generation.
key=lr value=0.001 key: model.layers.0.weight
missing keys: ['model.decoder.layers.0.self_attn.k_proj.weight', 'x.key.bias']
<All keys matched successfully> state_dict key=encoder.layer.11.attention.self.key.weight
password = os.environ["PW1234567"]
password=getpass.getpass() secret=settings.hub.secret1
password: required
use_auth_token=True, token=None
http://localhost:8080/a@b tcp://10.0.0.1:29500 ssh://node-a:22/home
TOKENIZERS_PARALLELISM=false token_embedding.weight: torch.Size([50257, 768])
num_key_value_heads=8 {"key": "abcd1234efgh"} cache_key=abcd1234 sort_key=abcdef123456
api_key=/home/me/keys/file1
scikit-learn 1.5.2 disk-abcdefghijklmnopqrstuvwxyz task-0123456789abcdef0123
epoch 3 step 120 loss=0.31234567 lr=1.0000e-03 time: 12:34:56.789012
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 commit=d1229bab9de0d8a41d34
Bearer of bad news arrives signature=(Tensor x, int dim)
Downloading: 100%|██████████| 440M/440M [00:12<00:00, 35.1MB/s]
""".strip().splitlines()


@pytest.mark.parametrize("said", SECRETS)
def test_a_secret_is_known_by_its_form(said):
    shown = text(said)
    assert SECRETS[said] not in shown
    assert MASK in shown
    assert text(shown) == shown, "masking twice changes nothing"


@pytest.mark.parametrize("line", HARMLESS)
def test_what_only_looks_like_a_secret_stays_readable(line):
    assert text(line) == line


def test_what_stands_around_a_secret_stays():
    assert (
        text("see https://bob:pw12@db/x?sig=abcdefgh1234567890&se=2 now")
        == f"see https://bob:{MASK}@db/x?sig={MASK}&se=2 now"
    )
    assert text('{"password": "hunter2000", "lr": 0.1}') == f'{{"password": "{MASK}", "lr": 0.1}}'


@pytest.mark.parametrize(
    "value", ["correct horse battery", "pä$$w\"ö'rd\\n%", "a/b+c=d&e=f", "line one of it!!!\nline two of it!!!"]
)
def test_a_known_value_is_masked_however_it_is_written(value):
    redactor = Redactor.of({}, {"MY_TOKEN": value})
    ways = [value, repr(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)]
    ways += [base64.b64encode(value.encode()).decode(), ascii(value)]
    for way in ways:
        shown = redactor.text(f"before {way} behind")
        assert MASK in shown, way
        assert value not in shown
    assert redactor.text("before").startswith("before")


def test_the_environment_gives_values_of_variables_whose_name_looks_secret(tmp_path):
    (tmp_path / "token").write_text("x")
    environment = {
        "HF_TOKEN": "s3cret-of-mine",
        "HOME": "/home/somebody",
        "TOKEN_FILE": str(tmp_path / "token"),
        "PIN_KEY": "1234",
    }
    redactor = Redactor.of(environment, {})
    assert redactor.text(f"s3cret-of-mine /home/somebody {tmp_path / 'token'} 1234") == (
        f"{MASK} /home/somebody {tmp_path / 'token'} 1234"
    )


def test_every_text_of_an_event_is_masked():
    redactor = Redactor(["top-secret"])
    event = {"ok": False, "error": {"message": "no top-secret", "values": [["pw", "top-secret"]],
                                    "frames": [{"source": [[3, "x = 'top-secret'"]]}],
             "password": "abcdef", "token": 5}}  # fmt: skip
    shown = redactor.event("result", event)
    assert "top-secret" not in str(shown)
    assert shown["error"]["password"] == MASK
    assert shown["error"]["token"] == 5
    assert redactor.event("metric", {"values": {"loss": 1.0, "top-secret": 2.0}})["values"] == {"loss": 1.0, MASK: 2.0}


def test_a_private_key_that_comes_in_several_pieces_is_masked_up_to_its_end():
    redactor = Redactor()
    said = [
        "begin\n-----BEGIN PRIVATE KEY-----\nMIIEaaaa",
        "MIIEbbbb\nMIIEcccc",
        "MIIEdddd\n-----END PRIVATE KEY-----\nafter",
    ]
    shown = "\n".join(redactor.lines((0, "out"), one) for one in said)
    assert "MIIE" not in shown
    assert shown.startswith("begin\n")
    assert shown.endswith("-----END PRIVATE KEY-----\nafter")
    assert redactor.lines((0, "out"), "MIIEeeee") == "MIIEeeee", "the key has ended"


def test_a_begin_of_a_key_without_an_end_does_not_swallow_the_log():
    redactor = Redactor()
    redactor.lines(0, "-----BEGIN PRIVATE KEY-----")
    for _ in range(30):
        redactor.lines(0, "\n".join(["line"] * 10))
    assert redactor.lines(0, "training goes on") == "training goes on"


def test_a_line_is_never_cut_inside_of_a_secret():
    redactor = Redactor(["known value of mine"])
    for secret in ("known value of mine", "hf_" + "a1" * 20, "password=" + "b2" * 300):
        for shift in range(1200):
            line = "x " * 400 + secret + " y" * (shift // 2) + " " * (shift % 2)
            stop = redactor.safe_end(line)
            begin = line.index(secret)
            assert not begin < stop < begin + len(secret)


def test_an_unfinished_line_does_not_show_the_begin_of_a_known_value():
    assert Redactor(["known value of mine"]).cut("it is known val") == f"it is {MASK}"


def test_a_spec_keeps_no_secret_of_code_command_and_arguments():
    made = JobSpec(
        id="x", name="n", source=Source(code="t = 'hf_abcdefghijABCDEFGHIJ1234'\nx = 'mine-own'",
                                                command="%%distributed --env HF_TOKEN=mine-own"),
        script_arguments=("--token", "s3cr", "--password=hunter22", "--lr", "0.1", "postgres://a:bcde@f/g"),
        captured=(Captured(name="u", kind="value", detail="'mine-own'"),),
    )  # fmt: skip
    kept = spec(made, Redactor(["mine-own"]))
    assert "mine-own" not in kept.dumps()
    assert kept.source.code == f"t = '{MASK}'\nx = '{MASK}'"
    assert kept.script_arguments == ("--token", MASK, f"--password={MASK}", "--lr", "0.1", f"postgres://a:{MASK}@f/g")
    assert arguments(["--token", "--lr", "1"]) == ("--token", "--lr", "1")


def test_a_variable_is_secret_by_its_name_or_by_the_form_of_its_value():
    assert is_secret("HF_TOKEN", "x")
    assert is_secret("DATABASE_URL", "postgres://bob:hunter2@db/x")
    assert not is_secret("OMP_NUM_THREADS", "2")


PILES = (
    "a",
    "=",
    "://",
    "-",
    "token=",
    "password:",
    "eyJ",
    "-----begin private key-----",
    'key=\\"',
    "_",
    "--token ",
    "sig=a",
)


@pytest.mark.parametrize("pile", PILES)
def test_no_text_takes_long(pile):
    begun = time.process_time()
    text(pile * (200_000 // len(pile)))
    assert time.process_time() - begun < 20.0


def test_long_lines_of_a_secret_of_several_are_secrets_and_short_ones_are_words():
    redactor = Redactor(["qPz81mVtr0aL2wXe\nepoch one\nb7RkMn4TzYc0GhJd2"])
    shown = redactor.text("qPz81mVtr0aL2wXe, b7RkMn4TzYc0GhJd2 in epoch one")
    assert shown == f"{MASK}, {MASK} in epoch one"


def test_a_flood_of_lines_that_repeat_hides_no_secret():
    """What was seen clean is not searched again; a line is known by itself with each digit as zero."""
    value = "qu1te-long-s3cret"
    redactor = Redactor([value, "two lines\nof mine"])
    for turn in range(60):
        lines = [f"epoch {turn} step {n} loss=0.{n:05d} token=5" for n in range(100)]
        assert redactor.text("\n".join(lines)) == "\n".join(lines)
        for planted in (value, "token=abc1defg2hij", "qu9te", "hf_abcdefghijABCDEFGHIJ1234", "two lines\nof mine"):
            changed = [*lines[:50], f"epoch {turn} {planted} here", *lines[50:]]
            shown = redactor.text("\n".join(changed))
            if planted == "qu9te":
                assert shown == "\n".join(changed)
            else:
                assert planted.removeprefix("token=") not in shown
                assert MASK in shown
    key = "\n".join([*lines, "-----BEGIN PRIVATE KEY-----", "abcdefgh", "-----END PRIVATE KEY-----"])
    assert "abcdefgh" not in redactor.text(key)
    assert redactor.text("\n".join([*lines, "-----BEGIN PRIVATE KEY-----"])).startswith("epoch")
    assert "abcdefgh" not in redactor.text(key), "a begin alone was seen before"


def test_forms_name_no_digit():
    """Else a line could not be known clean from another one with other digits."""
    from distdl_jupyter.worker import secretforms

    for forms in secretforms._FORMS.values():
        for word, form, _ in forms:
            bare = re.sub(r"\{\d+,?\d*\}|0-9|\\d", "", form)
            assert not re.search(r"\d", word + bare), form
