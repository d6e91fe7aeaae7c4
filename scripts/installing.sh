# Functions that scripts/install-* source, to install programs with the system's package manager.

# give_up REASON: prints why the program cannot be installed on this machine, and exits with 3.
give_up() {
    echo "$(basename "$0"): $1" >&2
    exit 3
}

# install DESCRIPTION FORMULAE PACKAGES: installs the formulae with Homebrew, or the packages with apt-get.
# FORMULAE and PACKAGES are names separated by spaces; the description tells users what to install by hand.
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
    # Installs only the programs and starts no server: `brew services start` is not called.
    brew install --quiet "${formulae[@]}" >&2 || give_up "Homebrew failed; install by hand: $by_hand"
}

install_with_apt() {
    local sudo=() policy=/usr/sbin/policy-rc.d status=0 log
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || give_up "not root and no sudo; install by hand: $by_hand"
        # Without a terminal, sudo must not ask for a password.
        if [ -t 0 ]; then sudo=(sudo); else sudo=(sudo -n); fi
        "${sudo[@]}" true || give_up "sudo refused; install by hand: $by_hand"
    fi
    echo "Installing ${packages[*]} with apt-get ..." >&2

    # The installation of a package starts its server, unless the program policy-rc.d exits with 101.
    # An existing policy-rc.d belongs to the administrator and is not changed.
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2064  # expanded now, because the local variables do not exist when the trap runs
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
