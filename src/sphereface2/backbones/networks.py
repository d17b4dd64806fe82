"""The networks that see a whole image, by name."""

from sphereface2.backbones.backbone import Backbone
from sphereface2.backbones.iresnet import IResNet18, IResNet34, IResNet50, IResNet100
from sphereface2.backbones.mobilefacenet import MBF, MBFLarge, MobileFaceNet
from sphereface2.backbones.sfnet import SFNet4, SFNet10, SFNet20, SFNet36, SFNet64

NETWORKS: dict[str, type[Backbone]] = {
    "sfnet4": SFNet4,
    "sfnet10": SFNet10,
    "sfnet20": SFNet20,
    "sfnet36": SFNet36,
    "sfnet64": SFNet64,
    "iresnet18": IResNet18,
    "iresnet34": IResNet34,
    "iresnet50": IResNet50,
    "iresnet100": IResNet100,
    "mobilefacenet": MobileFaceNet,
    "mbf": MBF,
    "mbf-large": MBFLarge,
}
