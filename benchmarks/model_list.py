"""Models of as many families as possible, for all kinds of trials (names as in models.py): timm's, torchvision's for
segmentation, transformers', and some of this folder."""

from random import Random

TIMM = (
    "timm/cspdarknet53:64",
    "timm/levit_256:64",
    "timm/skresnet50:64",
    "timm/resnest50d:64",
    "timm/beit_base_patch16_224:64",
    "timm/eca_halonext26ts:64@256",
    "timm/bat_resnext26ts:64@256",
    "timm/cait_xxs24_224:32",
    "timm/coat_lite_tiny:64",
    "timm/convit_tiny:64",
    "timm/convmixer_768_32:32",
    "timm/convnext_atto_rms:64",
    "timm/crossvit_9_240:64@240",
    "timm/cspresnext50:32",
    "timm/davit_tiny:64",
    "timm/deit3_small_patch16_224:64",
    "timm/densenetblur121d:64",
    "timm/dla34:64",
    "timm/dpn68:64",
    "timm/edgenext_xx_small:64",
    "timm/efficientformer_l1:64",
    "timm/efficientformerv2_s0:64",
    "timm/efficientnet_b0_gn:64",
    "timm/efficientvim_m1:64",
    "timm/efficientvit_b0:64",
    "timm/efficientvit_m0:64",
    "timm/eva02_small_patch14_224:32",
    "timm/fasternet_t0:64",
    "timm/fastvit_s12:64",
    "timm/focalnet_tiny_lrf:32",
    "timm/gcvit_xxtiny:32",
    "timm/ghostnetv3_050:64",
    "timm/hardcorenas_a:64",
    "timm/hgnetv2_b0:64",
    "timm/hiera_tiny_224:32",
    "timm/hrnet_w18_small:32",
    "timm/inception_next_atto:64",
    "timm/inception_v4:32@299",
    "timm/lowformer_b0:64",
    "timm/mambaout_femto:64",
    "timm/coatnet_0_rw_224:32",
    "timm/maxvit_tiny_rw_224:32",
    "timm/poolformer_s12:64",
    "timm/convformer_s18:32",
    "timm/gmlp_ti16_224:64",
    "timm/mixer_b16_224:64",
    "timm/lcnet_050:64",
    "timm/mobilevit_xxs:64@256",
    "timm/mobilevitv2_050:64@256",
    "timm/mvitv2_tiny:32",
    "timm/nest_tiny:32",
    "timm/nextvit_small:32",
    "timm/eca_nfnet_l0:32",
    "timm/pit_ti_224:64",
    "timm/pvt_v2_b0:64",
    "timm/rdnet_tiny:32",
    "timm/regnetx_002:64",
    "timm/repghostnet_050:64",
    "timm/repvit_m0_9:64",
    "timm/res2net50_26w_4s:32",
    "timm/ecaresnet26t:32",
    "timm/resnetv2_50d_gn:32",
    "timm/rexnet_100:64",
    "timm/selecsls42:64",
    "timm/shvit_s1:64",
    "timm/starnet_s050:64",
    "timm/swiftformer_xs:64",
    "timm/swin_tiny_patch4_window7_224:32",
    "timm/swinv2_tiny_window8_256:32@256",
    "timm/tiny_vit_5m_224:32",
    "timm/tnt_s_patch16_224:32",
    "timm/tresnet_m:32",
    "timm/twins_pcpvt_small:32",
    "timm/vgg11_bn:32",
    "timm/visformer_tiny:64",
    "timm/vitamin_small_224:32",
    "timm/volo_d1_224:32",
    "timm/ese_vovnet19b_dw:64",
    "timm/xception41:32",
    "timm/xcit_nano_12_p16_224:64",
    "timm/vit_relpos_small_patch16_224:32",
)
SEGMENTATION = (
    "segmentation/fcn_resnet50:8@256",
    "segmentation/deeplabv3_resnet50:8@256",
    "segmentation/lraspp_mobilenet_v3_large:8@256",
)
TRANSFORMERS = (
    "bert_base:8x128",
    "gpt2:8x128",
    "distilbert:8x128",
    "electra:8x128",
    "llama:8x128",
    "modernbert:8x128",
    "t5_small:8x128",
)
DIFFUSION = ("dit:64x32", "unet:16x64")
POPULATION = (*TIMM, *SEGMENTATION, *TRANSFORMERS, *DIFFUSION)
OTHERS_SHARE = 4  # of the models that are drawn one in so many is not timm's


def drawn(count: int, seed: int) -> list[str]:
    """So many models of the population, in the order in which they were drawn."""
    random = Random(seed)
    others = [*SEGMENTATION, *TRANSFORMERS, *DIFFUSION]
    found = random.sample(others, min(count // OTHERS_SHARE, len(others)))
    found += random.sample(TIMM, min(count - len(found), len(TIMM)))
    return random.sample(found, len(found))
