"""Demands of an image on its host, as traits."""

import os_traits  # type: ignore[import-untyped]

from bus.requests import Image
from scheduler_worker.core.group_draft import QuestionDraft
from scheduler_worker.core.invalid_request import Unreadable, nearest
from scheduler_worker.core.request_options import RequestOptions

_PREFIXES = {  # property → prefix of its traits
    "hw_architecture": "HW_ARCH_",
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS_",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS_",
    "hw_emulation_architecture": "COMPUTE_ARCH_",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL_",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL_",
}
_TYPES = "COMPUTE_IMAGE_TYPE_"


def add_image(draft: QuestionDraft, image: Image | None, options: RequestOptions) -> None:
    """Add `traits_required` and properties `trait:NAME=required`, and further properties if an operator
    enables them.
    """
    if image is None:
        return
    required = draft.groups[""].required
    for name in image.traits_required:
        required.setdefault(name, "image.traits_required")
    for key, value in image.properties.items():
        at = f"image.properties[{key!r}]"
        if key.startswith("trait:"):
            if value != "required":
                raise Unreadable(f"{at}: {value!r}: an image can only have it required")
            required.setdefault(key.removeprefix("trait:"), at)
        elif key in _PREFIXES and options.image_metadata_traits:
            draft.root_required[_trait(_PREFIXES[key], value, at)] = at
        elif key == "disk_format" and options.image_type_traits:
            draft.root_required[_trait(_TYPES, value, at)] = at


def _trait(prefix: str, value: str, at: str) -> str:
    name = prefix + value.strip().replace("-", "_").upper()
    known = set(os_traits.get_traits(prefix=prefix))
    if name not in known:
        values = [one.removeprefix(prefix).lower() for one in known]
        raise Unreadable(f"{at}: no host can say that it has {value!r}{nearest(value.lower(), values)}")
    return name
