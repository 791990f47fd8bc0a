"""Small models of all kinds with random weights, most of them from other packages (the group zoo of pyproject.toml).

They have few layers and small inputs. The small networks of training_models.py are not repeated.
"""

import copy
import importlib
import warnings
from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
import zoo_own
from marks import require
from torch import Tensor, nn
from training_models import WithLoss
from zoo_case import Case, of_images


@cache
def _names_for_torchvision():
    """Define two operators that PyPI's torchvision has only for CUDA's torch.

    Beside a CPU's torch they don't load, and torchvision's Python code, which timm needs, too, fails without their
    names; no model here calls them.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def package(name: str):
    """Import an optional package. Without it the test is skipped, in CI it fails: `make test-all` installs it."""
    for each in ("torchvision", name):
        require(each, "zoo")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        _names_for_torchvision()
    return importlib.import_module(name)


def timm(name: str, *shape: int, **options) -> Callable[[], Case]:
    def make():
        return of_images(package("timm").create_model(name, pretrained=False, num_classes=10, **options), *shape)

    return make


class Parts(nn.Module):
    """One result of a model, or several concatenated."""

    def __init__(self, model: nn.Module, *names: str):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        outputs = self.model(*inputs)
        outputs = [outputs[name] if isinstance(outputs, dict) else getattr(outputs, name) for name in self.names]
        return torch.cat([result.flatten(1) for result in outputs]) if len(outputs) > 1 else outputs[0]


def torchvision(name: str, *shape: int, parts=(), **options) -> Callable[[], Case]:
    def make():
        model = package("torchvision").models.get_model(name, weights=None, num_classes=10, **options)
        return of_images(Parts(model, *parts) if parts else model, *shape)

    return make


def replaced(model: nn.Module, kind: str, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Replace each module of this class in the model by `make(module)`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == kind:
                setattr(parent, name, make(child))
    return model


def rms_norm(norm: nn.Module) -> nn.Module:
    """PyTorch's RMS norm in place of T5's, which computes in fp32 even for fp64 inputs."""
    return nn.RMSNorm(norm.weight.shape, norm.variance_epsilon)


class Hardsigmoid(nn.Module):
    """Exact in fp64: PyTorch's derivative rounds 1/6 to fp32."""

    def forward(self, x):
        return (x + 3).clamp(0, 6) / 6


def words(kind: str, part="logits", **options) -> Callable[[], Case]:
    """Maker of a model of transformers, with a loss of this file: theirs is computed in fp32."""

    def make():
        transformers = package("transformers")
        name, _, _ = kind.partition("For")
        name = name.removesuffix("LMHeadModel").removesuffix("EncoderModel").removesuffix("Model")
        model = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**options))
        return Case(
            [WithLoss(Parts(replaced(model, "T5LayerNorm", rms_norm), part))],
            [torch.randint(50, (4, 12)), torch.arange(10)],
        )

    return make


BERT = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GPT2 = dict(
    vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)
DISTILBERT = dict(vocab_size=50, dim=32, n_layers=1, n_heads=4, hidden_dim=64, dropout=0.0, attention_dropout=0.0)
T5 = dict(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_heads=4, dropout_rate=0.0)


class Hearing(nn.Module):
    """Loss of a speech model: each word from the sounds and the preceding words."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, sounds, tokens):
        y = self.model(input_features=sounds, decoder_input_ids=tokens[:, :-1]).logits
        return F.cross_entropy(y.flatten(0, 1), tokens[:, 1:].flatten())


def whisper() -> Case:
    transformers = package("transformers")
    sizes = dict(d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes |= dict(encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16, vocab_size=50)
    tokens = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    config = transformers.WhisperConfig(dropout=0.0, use_cache=False, **sizes, **tokens)
    model = transformers.WhisperForConditionalGeneration(config)
    return Case([Hearing(model)], [torch.randn(2, 8, 32), torch.randint(50, (2, 7))])


class Nearness(nn.Module):
    """Loss of a model of images and texts: each text's own image is the nearest in the batch."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens, images):
        nearness, same = self.model(tokens, images).logits_per_text, torch.arange(tokens.shape[0], device=tokens.device)
        return F.cross_entropy(nearness, same) + F.cross_entropy(nearness.t(), same)


def clip() -> Case:
    transformers = package("transformers")
    layers = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    texts = dict(vocab_size=50, max_position_embeddings=12, eos_token_id=49, bos_token_id=0, pad_token_id=0, **layers)
    images = dict(image_size=32, patch_size=8, **layers)
    config = transformers.CLIPConfig(text_config=texts, vision_config=images, projection_dim=16)
    return Case([Nearness(transformers.CLIPModel(config))], [torch.randint(50, (4, 12)), torch.randn(4, 3, 32, 32)])


SMALL_SWIN = dict(img_size=56, embed_dim=24, depths=(2, 2), num_heads=(2, 4), drop_path_rate=0.0)
SMALL_BEIT = dict(img_size=64, depth=2, embed_dim=48, num_heads=4, init_values=0.1)
HEAVY = {
    "resnet": torchvision("resnet50", 4, 3, 64, 64),
    "shufflenet": torchvision("shufflenet_v2_x0_5", 4, 3, 64, 64),
    "googlenet": torchvision(
        "googlenet", 4, 3, 64, 64, parts=["logits", "aux_logits1"], init_weights=False, dropout=0.0, dropout_aux=0.0
    ),
    "deeplab": torchvision("lraspp_mobilenet_v3_large", 4, 3, 64, 64, parts=["out"], weights_backbone=None),
    "video": torchvision("r3d_18", 2, 3, 4, 32, 32),
    "resnext": timm("resnext50_32x4d", 4, 3, 64, 64, layers=[1, 1, 1, 1]),
    "res2net": timm("res2net50_26w_4s", 4, 3, 64, 64, layers=[1, 1, 1, 1]),
    "regnet": timm("regnety_002", 4, 3, 64, 64),
    "densenet": timm("densenet121", 4, 3, 64, 64),
    "efficientnet": timm("efficientnet_b0", 4, 3, 64, 64),
    "mobilenet": timm("mobilenetv3_small_050", 4, 3, 64, 64, drop_rate=0.0),
    "ghostnet": timm("ghostnet_050", 4, 3, 64, 64, drop_rate=0.0),
    "repvgg": timm("repvgg_a0", 4, 3, 64, 64),
    "hrnet": timm("hrnet_w18_small", 4, 3, 64, 64),
    "convnext": timm("convnext_atto", 4, 3, 64, 64, depths=(1, 1, 2, 1)),
    "convnext v2": timm("convnextv2_atto", 4, 3, 64, 64, depths=(1, 1, 2, 1)),
    "vit": timm("vit_tiny_patch16_224", 4, 3, 64, 64, img_size=64, depth=2),
    "swin": timm("swin_tiny_patch4_window7_224", 4, 3, 56, 56, **SMALL_SWIN),
    "beit": timm("beit_base_patch16_224", 4, 3, 64, 64, **SMALL_BEIT),
    "mixer": timm("mixer_s32_224", 4, 3, 64, 64, img_size=64),
    "poolformer": timm("poolformer_s12", 4, 3, 64, 64),
    "mobilevit": timm("mobilevit_xxs", 4, 3, 64, 64),
    "pvt": timm("pvt_v2_b0", 4, 3, 64, 64),
    "xcit": timm("xcit_nano_12_p16_224", 4, 3, 64, 64, depth=2),
    "coatnet": timm("coatnet_pico_rw_224", 4, 3, 64, 64, img_size=64),
    "nfnet": timm("nf_regnet_b0", 4, 3, 64, 64, drop_path_rate=0.0),
    "inception": timm("inception_v3", 4, 3, 128, 128),
    "bert": words("BertForSequenceClassification", **BERT, **NO_DROPOUT),
    "gpt2": words("GPT2LMHeadModel", **GPT2, bos_token_id=0, eos_token_id=0),
    "t5": words("T5EncoderModel", "last_hidden_state", num_layers=1, **T5),
    "distilbert": words("DistilBertForMaskedLM", **DISTILBERT),
    "whisper": whisper,
    "clip": clip,
    "gan": zoo_own.gan,
}
QUICK = zoo_own.QUICK
# Deep models, whose tests take a minute each; the layers of most are in the others, too.
EACH_NIGHT = {
    *("densenet", "inception", "hrnet", "ghostnet", "repvgg"),
    *("nfnet", "coatnet", "efficientnet", "googlenet"),
}


def made(make: Callable[[], Case], seed=0) -> Case:
    torch.manual_seed(seed)
    case = make()
    with torch.no_grad():
        for each in (parameter for model in case.models for parameter in model.parameters()):
            each += 0.02 * torch.randn_like(each)  # a weight that begins as zero would hide derivatives
    return case


def results(
    case: Case,
    dtype: torch.dtype,
    call: Callable = lambda model: model,
    device="cpu",
    autocast: torch.dtype | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors that a case compares, and the models' buffers afterwards.

    Args:
        call: compiles a model, or returns it as it is.
    """
    models = [copy.deepcopy(each).to(device, dtype) for each in case.models]
    return trained(case, models, [call(each) for each in models], autocast)


def trained(
    case: Case, models: Sequence[nn.Module], calls: Sequence[Callable], autocast: torch.dtype | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """As results(), of copies of the case's models that are compiled already."""
    first = next(models[0].parameters())
    inputs = [each.to(first.device, first.dtype if each.is_floating_point() else None) for each in case.inputs]
    with warnings.catch_warnings(), torch.autocast(first.device.type, autocast, autocast is not None):
        warnings.filterwarnings("error", message="a graph runs without a plan")
        tensors = case.train(calls, models, inputs)
    return tensors, [buffer for model in models for buffer in model.buffers()]
