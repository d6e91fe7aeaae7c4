# Sourced by scripts/install-*: installing programs with the system's own package manager.

# give_up WHY: it cannot be done here, which is not the caller's fault.
give_up() {
    echo "$(basename "$0"): $1" >&2
    exit 3
}

# install WHAT-BY-HAND FORMULAE PACKAGES: with Homebrew these formulae, with apt-get these packages, words each.
install() {
    local by_hand=$1 formulae packages
    read -r -a formulae <<<"$2"
    read -r -a packages <<<"$3"
    if [ "$(uname -s)" = Darwin ] && command -v brew >/dev/null 2>&1; then
        install_with_homebrew
    elif [ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1; then
        install_with_apt
    else
        give_up "cannot install on this system; install by hand: $by_hand"
    fi
}

install_with_homebrew() {
    echo "Installing ${formulae[*]} with Homebrew ..." >&2
    # Only the programs: `brew services start` is never called.
    brew install --quiet "${formulae[@]}" >&2 || give_up "Homebrew failed; install by hand: $by_hand"
}

install_with_apt() {
    local sudo=() policy=/usr/sbin/policy-rc.d status=0 log
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || give_up "not root and no sudo; install by hand: $by_hand"
        # Without a terminal nobody could type a password.
        if [ -t 0 ]; then sudo=(sudo); else sudo=(sudo -n); fi
        "${sudo[@]}" true || give_up "sudo refused; install by hand: $by_hand"
    fi
    echo "Installing ${packages[*]} with apt-get ..." >&2

    # Packages start their servers when installed; a policy-rc.d that says no (101) prevents it.
    # One that is already there is the administrator's and stays.
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2064  # expanded now on purpose: the locals are gone when it runs
        trap "${sudo[*]:-} rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | ${sudo[@]+"${sudo[@]}"} tee "$policy" >/dev/null
        ${sudo[@]+"${sudo[@]}"} chmod 755 "$policy"
    fi

    log=$(mktemp)
    apt_get() {
        ${sudo[@]+"${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
            apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" </dev/null >>"$log" 2>&1
    }
    { apt_get update && apt_get install --no-install-recommends "${packages[@]}"; } || status=$?
    if [ "$status" != 0 ]; then tail -n 20 "$log" >&2; fi
    rm -f "$log"
    if [ "$status" != 0 ]; then give_up "apt-get failed; install by hand: $by_hand"; fi
}
