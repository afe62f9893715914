#!/bin/sh
# Puts what `cargo build --release` made where the units of deploy/systemd look for it: programs, libtorch's libraries, units,
# completions and the manual.
#
#   sudo deploy/install.sh            on this machine
#   deploy/install.sh --root FOLDER   below a folder, to pack and to take elsewhere:
#                                     tar -C FOLDER --zstd -cf longhaul.tar.zst . ; there: tar -C / --zstd -xf longhaul.tar.zst
#
# --from FOLDER takes programs from there, instead of target/release. A program that was not built is left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root='' from=$here/../target/release
while [ $# -gt 0 ]; do
  case $1 in
    --root) root=${2:?--root wants a folder} ;;
    --from) from=${2:?--from wants a folder} ;;
    *) echo "install.sh [--root FOLDER] [--from FOLDER]" >&2; exit 2 ;;
  esac
  shift 2
done

installed=
for program in coordinator worker; do
  [ -x "$from/$program" ] || continue
  installed="$installed $program"
  install -D -m 755 -t "$root/usr/local/bin" "$from/$program"
  install -D -m 644 -t "$root/usr/local/lib/systemd/system" "$here/systemd/longhaul-$program"*.service
  share=$root/usr/local/share
  mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
  "$from/$program" completions bash > "$share/bash-completion/completions/$program"
  "$from/$program" completions zsh > "$share/zsh/site-functions/_$program"
  "$from/$program" completions fish > "$share/fish/vendor_completions.d/$program.fish"
  "$from/$program" man "$share/man/man1"
  if [ "$program" = worker ]; then
    mkdir -p "$root/usr/local/lib/longhaul"
    sh "$here/docker/runtime-libraries.sh" "$from/worker" | xargs cp -L --reflink=auto -t "$root/usr/local/lib/longhaul"
  fi
done
if [ -z "$installed" ]; then
  echo "there is neither a coordinator nor a worker in $from: cargo build --release" >&2
  exit 1
fi
echo "installed below ${root:-/}:$installed"
