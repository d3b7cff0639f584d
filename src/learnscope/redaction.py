"""The command line and the configuration of a run without the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "[redacted]"

_ANYWHERE = {
    "secret", "secrets", "password", "passwords", "passwd", "pwd", "passphrase", "credential", "credentials", "apikey",
    "apikeys", "authorization", "cookie", "webhook",
}  # fmt: skip
_AT_THE_END = {"key", "token", "auth", "pat", "pass", "bearer", "sig", "signature"}
"""Only as the last word of a name: `--api_key` holds a secret, `--key_dim` and `--token_dropout` do not."""
_KEYS = {("api", "keys"), ("access", "keys"), ("access", "tokens"), ("api", "tokens"), ("auth", "tokens")}
"""`--keys` and `--tokens` alone are not about secrets in this field."""
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")

_SPECIAL_TOKEN = re.compile(r"<.*>|\[.*\]")
_USER_OF_ADDRESS = re.compile(r"(?<=://)[^/?#\s]+(?=@)")  # to the last @: a password may hold one
_HOOK = re.compile(r"(?<=://)(hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/[^\s\"']+")
_PAIR = re.compile(r"""([\w.-]+)(["']?\s*(?::(?!//)|=)\s*["']?)([^\s"'&,;{}\[\]]+)""")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_KNOWN = re.compile(
    r"""\b(?:
        hf_\w{10,} | api_org_\w{10,}                                 # Hugging Face
      | sk-[\w-]{10,} | sk_(?:live|test)_\w{10,}                     # OpenAI, Anthropic, Stripe
      | gh[pousr]_\w{10,} | github_pat_\w{10,} | glpat-[\w-]{10,}    # GitHub, GitLab
      | xox[abeoprs]-[\w-]{10,}                                      # Slack
      | (?:AKIA|ASIA)[0-9A-Z]{12,}                                   # AWS
      | AIza[\w-]{20,} | ya29\.[\w-]{10,}                            # Google
      | (?:npm|dckr_pat|r8|hvs)[_.][\w-]{10,} | pypi-[\w-]{16,}      # npm, Docker, Replicate, Vault, PyPI
      | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                              # JSON web tokens
    )""",
    re.VERBOSE,
)


def redacted(arguments: Iterable[str]) -> list[str]:
    """The arguments with the values of secret options, user names in addresses and known tokens hidden.

    >>> redacted(["train.py", "--lr", "0.1", "--api-key", "abc", "wandb_token=abc", "https://me:abc@host/data"])
    ['train.py', '--lr', '0.1', '--api-key', '[redacted]', 'wandb_token=[redacted]', 'https://[redacted]@host/data']
    """
    return list(_hidden_values(arguments))


def without_secrets(value: Any) -> Any:
    """A configuration with the texts of secret entries hidden; names of special tokens are none.

    >>> without_secrets({"lr": 0.1, "hub": {"api_key": "abc", "pad_token": "<pad>"}})
    {'lr': 0.1, 'hub': {'api_key': '[redacted]', 'pad_token': '<pad>'}}
    """
    if isinstance(value, Mapping):
        return {key: _hidden(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in value]
    return _without_secrets(value) if isinstance(value, str) else value


def _hidden(name: str, value: Any) -> Any:
    is_text = isinstance(value, str) and value and not _SPECIAL_TOKEN.fullmatch(value)
    return HIDDEN if is_text and _is_secret(name) else without_secrets(value)


def _hidden_values(arguments: Iterable[str]) -> Iterator[str]:
    value_is_secret = several = False
    for argument in arguments:
        is_option = argument.startswith("-")
        if value_is_secret and not is_option:
            yield HIDDEN
            value_is_secret = several
            continue
        value_is_secret = is_option and "=" not in argument and _is_secret(argument)
        several = argument.endswith("s")  # --api_keys A B
        yield _without_secrets(argument)


def _without_secrets(text: str) -> str:
    text = _USER_OF_ADDRESS.sub(HIDDEN, text)
    text = _HOOK.sub(rf"\1/{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _KNOWN.sub(HIDDEN, _PAIR.sub(_without_secret_value, text))


def _without_secret_value(pair: re.Match[str]) -> str:
    """`name=value`; the value of a harmless name may hold a pair of its own, as in `url=https://host?token=…`."""
    name, equals, value = pair.groups()
    return name + equals + (HIDDEN if _is_secret(name) else _PAIR.sub(_without_secret_value, value))


def _is_secret(name: str) -> bool:
    """Whether an option of this name holds a secret.

    >>> _is_secret("--hfToken"), _is_secret("--tokenizer"), _is_secret("--num_key_value_heads")
    (True, False, False)
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    at_the_end = bool(words) and (words[-1] in _AT_THE_END or tuple(words[-2:]) in _KEYS)
    return at_the_end or not _ANYWHERE.isdisjoint(words)
