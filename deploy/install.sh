#!/bin/sh
# Puts what `cargo build --release` made where the units of deploy/systemd look for it: programs, libtorch's libraries, units,
# completions and the manual.
#
#   sudo deploy/install.sh                          on this machine
#   deploy/install.sh --archive longhaul.tar.zst    packed, to take elsewhere; there, as root:
#                                                   tar --no-same-owner --no-overwrite-dir -C / -xf longhaul.tar.zst
#   deploy/install.sh --root FOLDER                 below a folder
#
# --from FOLDER takes programs from there, instead of target/release. A program that was not built is left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root='' archive='' from=$here/../target/release
while [ $# -gt 0 ]; do
  case $1 in
    --root) root=${2:?--root wants a folder} ;;
    --archive) archive=${2:?--archive wants a file: longhaul.tar.zst} ;;
    --from) from=${2:?--from wants a folder} ;;
    *) echo "install.sh [--root FOLDER | --archive FILE] [--from FOLDER]" >&2; exit 2 ;;
  esac
  shift 2
done
if [ -n "$archive" ]; then
  if [ -n "$root" ]; then
    echo "install.sh: either --root or --archive" >&2
    exit 2
  fi
  root=$(mktemp -d "$(dirname "$archive")/longhaul-stage.XXXXXX")
  trap 'rm -rf "$root"' EXIT
fi
# Whoever installs may keep files to himself; these are for all of the machine.
umask 022

# As they lie to each other where they were assembled, which is how they find each other: libtorch's own in torch/lib, where the
# program looks beside itself, and NVIDIA's beside those.
libraries() {
  listed=$(sh "$here/docker/runtime-libraries.sh" "$1")
  lib=$(dirname "$(printf '%s\n' "$listed" | grep '/libtorch_cpu\.so$')")
  assembled=${lib%/*/*}
  printf '%s\n' "$listed" | while IFS= read -r library; do
    case $library in
      "$lib"/*) place=torch/lib/${library##*/} ;;
      *) place=${library#"$assembled"/} ;;
    esac
    mkdir -p "$2/$(dirname "$place")"
    cp -L --reflink=auto "$library" "$2/$place"
    chmod 644 "$2/$place"
  done
}

installed=
for program in coordinator worker; do
  # The command `worker` becomes the program that computes, once it has found libtorch for it.
  parts=$program
  [ "$program" != worker ] || parts='worker worker-torch'
  built=
  for part in $parts; do
    [ ! -x "$from/$part" ] || built="$built $part"
  done
  [ -n "$built" ] || continue
  if [ "$built" != " $parts" ]; then
    echo "of $parts, there is only$built in $from: cargo build --release" >&2
    exit 1
  fi
  installed="$installed $program"
  for part in $parts; do
    install -D -m 755 -t "$root/usr/local/bin" "$from/$part"
  done
  install -D -m 644 -t "$root/usr/local/lib/systemd/system" "$here/systemd/longhaul-$program"*.service
  share=$root/usr/local/share
  mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
  "$from/$program" completions bash > "$share/bash-completion/completions/$program"
  "$from/$program" completions zsh > "$share/zsh/site-functions/_$program"
  "$from/$program" completions fish > "$share/fish/vendor_completions.d/$program.fish"
  "$from/$program" man "$share/man/man1"
  if [ "$program" = worker ]; then
    libraries "$from/worker-torch" "$root/usr/local/lib/longhaul"
  fi
done
if [ -z "$installed" ]; then
  echo "there is neither a coordinator nor a worker in $from: cargo build --release" >&2
  exit 1
fi
if [ -n "$archive" ]; then
  # Nobody's but root's, whoever packs; and no entry for the root folder itself.
  tar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$root" --auto-compress -cf "$archive" usr
  echo "packed into $archive:$installed"
else
  echo "installed below ${root:-/}:$installed"
fi
