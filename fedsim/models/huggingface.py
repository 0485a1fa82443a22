"""Any language model of the transformers library, from a folder or by its name: BERT, GPT-2, Llama; LoRA.

Needs the extra `text`: pip install 'fedsim-lab[text]'.
"""

import warnings
from typing import Any

from torch import Tensor, nn

from fedsim.core.errors import FedsimError, in_words
from fedsim.core.inputs import Tokens
from fedsim.core.settings import one_of, switch, whole
from fedsim.core.types import Task
from fedsim.core.vision import load_torchvision
from fedsim.models.text_layers import fix_frozen, tokens_of

TRAINED = ("all", "without_embeddings")


def huggingface(
    task: Task,
    *,
    path: str,
    trained: str = "all",
    lora: int = 0,
    lora_layers: str = "",
    pretrained: bool = True,
) -> nn.Module:
    """Language model of the transformers library, to classify texts or to continue them; lora: its rank.

    What is not trained is everybody's from the start: it is neither sent nor answered.
    """
    form = tokens_of(task, "huggingface")
    one_of("model.trained", trained, TRAINED)
    whole("model.lora", lora, 0)
    switch("model.pretrained", pretrained)
    network = _network(form, task.num_classes, path, pretrained)
    if int(network.config.vocab_size) < len(form.vocabulary):
        raise FedsimError(
            f"model huggingface: {path} knows {network.config.vocab_size} tokens, and the data has "
            f"{len(form.vocabulary)}. Remedy: data.pieces={path}/vocab.txt, the model's own."
        )
    if lora:
        network = _with_lora(network, lora, lora_layers)
    elif trained == "without_embeddings":
        network.get_input_embeddings().requires_grad_(requires_grad=False)
        for module in network.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(requires_grad=False)
    model = Language(network, form)
    fix_frozen(model)
    return model.eval()


def transformers_library() -> Any:
    """Return the library, or say how to get it."""
    load_torchvision()  # which it imports
    try:
        import transformers
    except ImportError as error:
        raise FedsimError(
            "model huggingface needs the transformers library. Remedy: pip install 'fedsim-lab[text]'"
        ) from error
    told: Any = transformers.utils.logging
    told.set_verbosity_error()
    told.disable_progress_bar()
    return transformers


def _network(form: Tokens, num_classes: int, path: str, pretrained: bool) -> Any:
    library = transformers_library()
    kind = library.AutoModelForCausalLM if form.continued else library.AutoModelForSequenceClassification
    own: dict[str, Any] = {} if form.continued else {"num_labels": num_classes, "pad_token_id": form.padding}
    try:
        if pretrained:
            return kind.from_pretrained(path, attn_implementation="eager", **own)
        config = library.AutoConfig.from_pretrained(path, **own)
        return kind.from_config(config, attn_implementation="eager")
    except Exception as error:  # whatever the library says of a folder or a name
        raise FedsimError(
            f"model huggingface: {path} cannot be loaded ({in_words(error)}). "
            "Remedy: model.path=FOLDER with config.json and model.safetensors."
        ) from error


def _with_lora(network: Any, rank: int, layers: str) -> Any:
    try:
        import peft
    except ImportError as error:
        raise FedsimError("model.lora needs peft. Remedy: pip install 'fedsim-lab[text]'") from error
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=layers.split(",") if layers else None)
    with warnings.catch_warnings():  # that GPT-2's layers are turned around, which peft sees by itself
        warnings.simplefilter("ignore")
        return peft.get_peft_model(network, config)


class Language(nn.Module):
    """A network of the library as a model here: tokens in, logits out, padding masked."""

    def __init__(self, network: nn.Module, form: Tokens) -> None:
        super().__init__()
        self.network, self.padding, self.continued = network, form.padding, form.continued

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (N, classes), or of next tokens (N, vocabulary, length)."""
        tokens = tokens.long()
        shown = tokens != self.padding
        shown = shown | ~shown.any(dim=1, keepdim=True)  # an empty text shows its padding
        logits: Tensor = self.network(input_ids=tokens, attention_mask=shown.long()).logits
        return logits.mT if self.continued else logits
