"""Translates extra specs and image properties that require traits of hosts, memory encryption or persistent
memory.
"""

import re
from collections.abc import Collection

import os_traits  # type: ignore[import-untyped]

from bus.requests import Image
from features.guest_hardware.core.guest_specs import GuestSpecs
from scheduler_worker.core.extension import QuestionDraft, Unreadable, nearest

_SOUND = ("sb16", "es1370", "pcspk", "ac97", "ich6", "ich9", "usb", "virtio")
_SWITCHES = {
    "hw:virtio_packed_ring": "COMPUTE_NET_VIRTIO_PACKED",
    "hw:firmware_stateless": "COMPUTE_SECURITY_STATELESS_FIRMWARE",
    "hw:ephemeral_encryption": "COMPUTE_EPHEMERAL_ENCRYPTION",
}
_ONLY_WITH = {  # extra spec → the extra spec without which it has no effect, as in Nova
    "hw:tpm_model": "hw:tpm_version",
    "hw:tpm_secret_security": "hw:tpm_version",
    "hw:mem_encryption_model": "hw:mem_encryption",
    "hw:ephemeral_encryption_format": "hw:ephemeral_encryption",
}
_PREFIXES = {  # property → prefix of its traits
    "hw_architecture": "HW_ARCH_",
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS_",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS_",
    "hw_emulation_architecture": "COMPUTE_ARCH_",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL_",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL_",
}
_TYPES = "COMPUTE_IMAGE_TYPE_"


def _traits(prefix: str, *values: str) -> dict[str, str]:
    return {value: prefix + re.sub(r"[-.]", "_", value.upper()) for value in values}


_MODELS = _traits("HW_CPU_X86_", "amd-sev", "amd-sev-es", "amd-sev-snp", "intel-tdx")
_DEFAULT_MODEL = "amd-sev"
# Values of extra specs → the trait that the host must have; empty: none.
_TRAITS = {
    "hw:tpm_version": _traits("COMPUTE_SECURITY_TPM_", "1.2", "2.0"),
    "hw:tpm_model": _traits("COMPUTE_SECURITY_", "tpm-tis", "tpm-crb"),
    "hw:tpm_secret_security": _traits("COMPUTE_SECURITY_TPM_SECRET_SECURITY_", "user", "host", "deployment"),
    "os:secure_boot": {"required": "COMPUTE_SECURITY_UEFI_SECURE_BOOT", "optional": "", "disabled": ""},
    "hw:maxphysaddr_mode": {
        "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
        "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
    },
    "hw:viommu_model": _traits("COMPUTE_VIOMMU_MODEL_", "intel", "smmuv3", "virtio", "auto"),
    "hw:sound_model": _traits("COMPUTE_SOUND_MODEL_", *_SOUND),
    "hw:ephemeral_encryption_format": _traits("COMPUTE_EPHEMERAL_ENCRYPTION_", "luks", "plain"),
}
# Extra specs from which required traits, encryption contexts and namespaces are made.
CAPABILITIES = frozenset({*_TRAITS, *_SWITCHES, *_ONLY_WITH, "hw:mem_encryption", "hw:pmem"})


def add_capabilities(draft: QuestionDraft, specs: GuestSpecs) -> None:
    """Add to the draft request the host traits and memory encryption context that extra specs require."""
    for key, known in _TRAITS.items():
        spec = specs.get(key) if _has_effect(key, specs) else None
        if spec is not None and (trait := known[spec.one_of(*known)]):
            draft.root_required[trait] = spec.at
    for key, trait in _SWITCHES.items():
        spec = specs.get(key)
        if spec is not None and spec.yes():
            draft.root_required[trait] = spec.at
    model, version = specs.get("hw:tpm_model"), specs.get("hw:tpm_version")
    if model is not None and version is not None and (model.value, version.value) == ("tpm-crb", "1.2"):
        raise Unreadable(f"{model.at}: 'tpm-crb', and {version.at}: '1.2': it is of version 2.0")
    _add_encryption(draft, specs)
    if (spec := specs.of_flavor("hw:pmem")) is not None:
        for label in spec.value.split(","):
            name = label.strip().upper()
            if not re.fullmatch(r"[A-Z0-9_]{1,200}", name):
                raise Unreadable(f"{spec.at}: {label!r} is no name of a namespace")
            draft.ask("", f"CUSTOM_PMEM_NAMESPACE_{name}", 1)


def _has_effect(key: str, specs: GuestSpecs) -> bool:
    """Return whether the extra spec that `key` needs is present, and not false if it is true or false."""
    if (other := _ONLY_WITH.get(key)) is None:
        return True
    spec = specs.get(other)
    return spec is not None and (other not in _SWITCHES or spec.yes())


def _add_encryption(draft: QuestionDraft, specs: GuestSpecs) -> None:
    spec = specs.get("hw:mem_encryption")
    if spec is None or not spec.yes():
        return
    firmware = specs.of_image("hw_firmware_type")
    if firmware is not None and firmware.value.lower() != "uefi":
        raise Unreadable(f"{spec.at}: it needs UEFI, and {firmware.at}: {firmware.value!r}")
    draft.ask("_mem_encryption", "MEM_ENCRYPTION_CONTEXT", 1)
    model = specs.one_of("hw:mem_encryption_model", *_MODELS) or _DEFAULT_MODEL
    draft.groups["_mem_encryption"].required[_MODELS[model]] = spec.at


def add_image(draft: QuestionDraft, image: Image, kinds: Collection[str]) -> None:
    """Add to the draft request the host traits for the image's properties (`metadata`) and its disk format
    (`type`), as far as `kinds` names them.
    """
    for key, value in image.properties.items():
        at = f"image.properties[{key!r}]"
        if key in _PREFIXES and "metadata" in kinds:
            draft.root_required[_image_trait(_PREFIXES[key], value, at)] = at
        elif key == "disk_format" and "type" in kinds:
            draft.root_required[_image_trait(_TYPES, value, at)] = at


def _image_trait(prefix: str, value: str, at: str) -> str:
    name = prefix + value.strip().replace("-", "_").upper()
    known = set(os_traits.get_traits(prefix=prefix))
    if name not in known:
        values = [trait.removeprefix(prefix).lower() for trait in known]
        raise Unreadable(f"{at}: no host can report {value!r}{nearest(value.lower(), values)}")
    return name
