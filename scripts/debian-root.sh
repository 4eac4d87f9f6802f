#!/bin/sh
# A clean system without Rust, Python and OpenBLAS, in which installed programs are tried: this machine's release of Debian
# or Ubuntu, or bookworm elsewhere, since programs that are built here need a C library as new as the one here.
#   debian-root.sh make [DIR]                 makes it once, by debootstrap; by default target/debian-root
#   debian-root.sh run DIR FILES COMMAND...   COMMAND as root in a copy of it, with the directory FILES at /mnt. The copy is
#                                             in memory and ends with the command, together with all its processes
# Both need root, or sudo without a password. Exit codes of make: 75 if the packages could not be fetched, 69 if this
# machine lacks what it takes.
set -eu
. "$(dirname -- "$0")/lib.sh"

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
LACKING=69     # EX_UNAVAILABLE

usage="usage: debian-root.sh make [DIR] | run DIR FILES COMMAND..."
order=${1:?$usage}
shift
as_root=
[ "$(id -u)" = 0 ] || as_root="sudo -n --preserve-env=http_proxy,https_proxy"

lacking() { say "$@" >&2; exit "$LACKING"; }

# fetched LOG COMMAND...: ends with NO_REGISTRY if the command fails because a package could not be fetched.
fetched() {
    log=$1
    shift
    "$@" >"$log" 2>&1 && return 0
    grep '^[EW]: ' "$log" >&2 || tail -n 5 "$log" >&2
    grep -Eq "Failed getting release file|Couldn't download|Failed to fetch|Could not resolve" "$log" || die "$1 failed, see $log"
    exit "$NO_REGISTRY"
}

make() {
    dir=${1:-$(target_dir)/debian-root}
    # Names of the packages that come with ours, for an installation without a network.
    needs=$(sed -n 's/^depends = "\(.*\)"$/\1/p; s/^recommends = "\(.*\)"$/\1/p' programs/paceline/Cargo.toml | sed 's/([^)]*)//g; s/,//g' | xargs)
    [ -n "$needs" ] || die "expected the line 'depends' in programs/paceline/Cargo.toml, found none"
    [ "$(cat "$dir.made" 2>/dev/null)" != "$needs" ] || return 0

    have debootstrap || lacking "expected debootstrap, found none. On Debian this installs it: sudo apt-get install -y debootstrap"
    # shellcheck disable=SC2086
    $as_root unshare --mount true 2>/dev/null || lacking "expected root, or sudo without a password, on a system where root may mount, found neither"
    suite=$(. /etc/os-release && say "${VERSION_CODENAME:-bookworm}")
    components=main
    case $suite in noble | jammy) components=main,universe ;; esac
    say "Making a clean $suite in $dir"
    # What an interrupted run left.
    # shellcheck disable=SC2086
    $as_root rm -rf -- "$dir" "$dir.made"
    mkdir -p "$(dirname -- "$dir")"
    # shellcheck disable=SC2086
    fetched "$dir.log" $as_root debootstrap --variant=minbase --components="$components" "$suite" "$dir"
    # shellcheck disable=SC2086
    fetched "$dir.log" $as_root chroot "$dir" apt-get -q update
    # shellcheck disable=SC2086
    fetched "$dir.log" $as_root chroot "$dir" apt-get -q install -y --download-only $needs
    # Last, so that an interrupted run is not taken for a whole one.
    say "$needs" >"$dir.made"
}

# In a mount namespace of its own.
enter() {
    dir=$1 files=$2
    shift 2
    over=$dir/mnt root=$dir/mnt/root
    mount -t tmpfs none "$over"
    mkdir "$over/upper" "$over/work" "$root"
    mount -t overlay -o "lowerdir=$dir,upperdir=$over/upper,workdir=$over/work" none "$root"
    mount --bind "$files" "$root/mnt"
    mount --rbind /dev "$root/dev"
    mount -t proc none "$root/proc"
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
        chroot "$root" "$@"
}

case $order in
    make) make "$@" ;;
    run)
        [ $# -ge 3 ] || die "$usage"
        # shellcheck disable=SC2086
        exec $as_root unshare --mount --pid --fork --kill-child sh "$ROOT/scripts/debian-root.sh" enter "$@"
        ;;
    enter) enter "$@" ;;
    *) die "$usage" ;;
esac
