# SPDX-License-Identifier: BSD-3-Clause
# packages - what Bulkhead needs of Debian 12, and one function that installs what of it is missing.
# Sourced by scripts/test and scripts/quickstart; changes nothing by itself.

bulkhead_packages="
    build-essential autoconf automake libtool pkg-config
    python3 python3-dev
    libinih-dev libjansson-dev libevent-dev libcurl4-openssl-dev libblas-dev libdlpack-dev
    libfabric-dev libibverbs-dev librdmacm-dev
    curl"
bulkhead_test_packages="libcunit1-dev python3-pytest python3-hypothesis python3-numpy mypy binutils g++
    qemu-system-x86 ibverbs-providers iproute2 xz-utils"

# bulkhead_missing_packages PACKAGE…: those that dpkg does not know as installed, one a line.
bulkhead_missing_packages()
{
    local package

    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            printf '%s\n' "$package"
    done
}

# bulkhead_install_packages [tests]: installs what is missing, by apt, with sudo when not root.
# Nothing is touched, and no right is needed, when all is there.
bulkhead_install_packages()
{
    local missing sudo="" want="$bulkhead_packages"

    [ "${1-}" = tests ] && want="$want $bulkhead_test_packages"
    # shellcheck disable=SC2086 # a list of names
    missing=$(bulkhead_missing_packages $want | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "missing packages (Debian's names): $missing" >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "missing packages: $missing" >&2
            echo "install them as root: apt-get install $missing" >&2
            return 1
        fi
        sudo="sudo"
    fi
    echo "installing: $missing"
    # Not `set -e`: a failing update may still leave a usable list, and the install tells.
    $sudo apt-get update -qq || echo "apt-get update failed; trying with the lists that are there" >&2
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
