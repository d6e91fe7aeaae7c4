"""Devices that a guest names: PCI aliases, encrypted memory, a TPM, secure boot."""

import re

from scheduler_worker.core.extra_specs import GuestSpecs
from scheduler_worker.core.group_draft import GroupDraft, QuestionDraft
from scheduler_worker.core.invalid_request import Unreadable, nearest
from scheduler_worker.core.request_options import NUMA_POLICIES, PciAlias, RequestOptions

MAX_DEVICES = 64
_ALIAS = re.compile(r"\s*([A-Za-z0-9_-]{1,48})\s*(?::\s*([0-9]{1,3})\s*)?")
_MODELS = {
    "amd-sev": "HW_CPU_X86_AMD_SEV",
    "amd-sev-es": "HW_CPU_X86_AMD_SEV_ES",
    "amd-sev-snp": "HW_CPU_X86_AMD_SEV_SNP",
}
# What is asked of the host itself: value → trait. Empty: nothing needs to be there.
_TRAITS = {
    "hw:tpm_version": {"1.2": "COMPUTE_SECURITY_TPM_1_2", "2.0": "COMPUTE_SECURITY_TPM_2_0"},
    "hw:tpm_model": {"tpm-tis": "COMPUTE_SECURITY_TPM_TIS", "tpm-crb": "COMPUTE_SECURITY_TPM_CRB"},
    "hw:tpm_secret_security": {
        word: f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{word.upper()}"
        for word in ("user", "host", "deployment")
    },
    "os:secure_boot": {"required": "COMPUTE_SECURITY_UEFI_SECURE_BOOT", "optional": "", "disabled": ""},
    "hw:maxphysaddr_mode": {
        "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
        "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
    },
    "hw:viommu_model": {
        model: f"COMPUTE_VIOMMU_MODEL_{model.upper()}" for model in ("intel", "smmuv3", "virtio", "auto")
    },
    "hw:sound_model": {
        model: f"COMPUTE_SOUND_MODEL_{model.upper()}"
        for model in ("sb16", "es1370", "pcspk", "ac97", "ich6", "ich9", "usb", "virtio")
    },
    "hw:ephemeral_encryption_format": {
        "luks": "COMPUTE_EPHEMERAL_ENCRYPTION_LUKS",
        "plain": "COMPUTE_EPHEMERAL_ENCRYPTION_PLAIN",
    },
}
_SWITCHES = {
    "hw:virtio_packed_ring": "COMPUTE_NET_VIRTIO_PACKED",
    "hw:firmware_stateless": "COMPUTE_SECURITY_STATELESS_FIRMWARE",
    "hw:ephemeral_encryption": "COMPUTE_EPHEMERAL_ENCRYPTION",
}
_NEEDS = {  # means nothing without the other
    "hw:tpm_model": "hw:tpm_version",
    "hw:tpm_secret_security": "hw:tpm_version",
    "hw:mem_encryption_model": "hw:mem_encryption",
    "hw:ephemeral_encryption_format": "hw:ephemeral_encryption",
}


def add_capabilities(draft: QuestionDraft, specs: GuestSpecs) -> None:
    """Require the host traits of the extra specs, and a memory encryption context."""
    for key, other in _NEEDS.items():
        said = specs.get(key)
        if said is not None and specs.get(other) is None:
            raise Unreadable(f"{said.at}: only with {other}")
    for key, known in _TRAITS.items():
        said = specs.get(key)
        if said is not None and (trait := known[said.one_of(*known)]):
            draft.root_required[trait] = said.at
    for key, trait in _SWITCHES.items():
        said = specs.get(key)
        if said is not None and said.yes():
            draft.root_required[trait] = said.at
    model, version = specs.get("hw:tpm_model"), specs.get("hw:tpm_version")
    if model is not None and version is not None and (model.value, version.value) == ("tpm-crb", "1.2"):
        raise Unreadable(f"{model.at}: 'tpm-crb', and {version.at}: '1.2': it is of version 2.0")
    _add_encryption(draft, specs)
    _add_persistent_memory(draft, specs)


def _add_encryption(draft: QuestionDraft, specs: GuestSpecs) -> None:
    said = specs.get("hw:mem_encryption")
    if said is None or not said.yes():
        return
    firmware = specs.of_image("hw_firmware_type")
    if firmware is not None and firmware.value.lower() != "uefi":
        raise Unreadable(f"{said.at}: it needs UEFI, and {firmware.at}: {firmware.value!r}")
    draft.ask("_mem_encryption", "MEM_ENCRYPTION_CONTEXT", 1)
    model = specs.one_of("hw:mem_encryption_model", *_MODELS)
    if model:
        draft.groups["_mem_encryption"].required[_MODELS[model]] = said.at


def _add_persistent_memory(draft: QuestionDraft, specs: GuestSpecs) -> None:
    said = specs.of_flavor("hw:pmem")
    if said is None:
        return
    for label in said.value.split(","):
        name = label.strip().upper()
        if not re.fullmatch(r"[A-Z0-9_]{1,200}", name):
            raise Unreadable(f"{said.at}: {label!r} is no name of a namespace")
        draft.ask("", f"CUSTOM_PMEM_NAMESPACE_{name}", 1)


def add_devices(draft: QuestionDraft, specs: GuestSpecs, options: RequestOptions, cells: int) -> None:
    """Add a request group for each device, so that each can come from another provider. If its alias requires
    NUMA affinity, device n belongs to NUMA cell n of the guest.
    """
    said = specs.of_flavor("pci_passthrough:alias")
    alternative = specs.one_of("hw:pci_numa_affinity_policy", *NUMA_POLICIES)
    if said is None:
        return
    number = 0
    for part in said.value.split(","):
        match = _ALIAS.fullmatch(part)
        if match is None:
            raise Unreadable(f"{said.at}: {part.strip()!r} is no alias with a number, as in a1:2,b:1")
        name, count = match[1], int(match[2] or 1)
        alias = options.pci_aliases.get(name)
        if alias is None:
            raise Unreadable(
                f"{said.at}: there is no alias {name!r} (the setting pci_aliases)"
                + nearest(name, options.pci_aliases)
            )
        if not count or number + count > MAX_DEVICES:
            raise Unreadable(f"{said.at}: {count} of {name!r}: from 1 to {MAX_DEVICES} devices in all")
        for _ in range(count):
            suffix = f"_pci{number}_{name}"
            _add_device(draft, suffix, alias, said.at)
            policy = alternative or alias.numa_policy
            if policy == "required" and cells:
                draft.same.append((f"_numa{number % cells}", suffix))
            elif policy == "socket":
                draft.root_required["COMPUTE_SOCKET_PCI_NUMA_AFFINITY"] = said.at
            number += 1


def _add_device(draft: QuestionDraft, suffix: str, alias: PciAlias, at: str) -> None:
    draft.groups.setdefault(suffix, GroupDraft())
    draft.ask(suffix, alias.resource_class, 1)
    draft.groups[suffix].required |= dict.fromkeys(alias.traits, at)
