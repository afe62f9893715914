#!/usr/bin/env bash
# Starts a worker on each of some machines over ssh, and stays with them until the run is finished. Ctrl-C or SIGTERM lets all of
# them leave in order; so does the end of a connection.
#
#   deploy/join.sh --coordinator head.example.org:4800 --token-file join-token --site amsterdam node1 node2 [-- --device cuda:0 …]
#
# --token-file FILE   the token, or the line that the coordinator printed; it goes over ssh, and into no command line
# --worker PATH       the program on those machines [worker]
# --ssh COMMAND       another ssh, or one with options [ssh -o BatchMode=yes -o ServerAliveInterval=15]
# What follows -- is given to each `worker join`. The machines need nothing but the program (deploy/install.sh) and a POSIX shell
# behind a login shell that reads single quotes as it does (csh does not). This machine needs bash 4.4 or newer.
set -euo pipefail

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//p;}' "$0" >&2
  exit 2
}

coordinator='' token_file='' site='' worker=worker
ssh=(ssh -o BatchMode=yes -o ServerAliveInterval=15)
hosts=() options=()
while [ $# -gt 0 ]; do
  case $1 in
    --coordinator) coordinator=${2:?$1 wants HOST:PORT}; shift ;;
    --token-file) token_file=${2:?$1 wants a file}; shift ;;
    --site) site=${2:?$1 wants a name}; shift ;;
    --worker) worker=${2:?$1 wants a path}; shift ;;
    --ssh) read -ra ssh <<< "${2:?$1 wants a command}"; shift ;;
    --) shift; options=("$@"); break ;;
    -*) usage ;;
    *) hosts+=("$1") ;;
  esac
  shift
done
if [ -z "$coordinator" ] || [ -z "$token_file" ] || [ -z "$site" ] || [ ${#hosts[@]} -eq 0 ]; then usage; fi
token=$(grep -o 'lh1\.[^[:space:]]*' "$token_file" | head -n 1) || {
  echo "$token_file holds no join token: coordinator token create prints one" >&2
  exit 2
}

# What each machine runs. The token is the first line of its input; when the input ends, the worker is asked to leave.
# shellcheck disable=SC2016 # It is the other shell that expands them.
remote='
  IFS= read -r LONGHAUL_TOKEN && export LONGHAUL_TOKEN
  exec 3<&0
  "$@" <&- 3<&- & worker=$!
  { cat; kill -TERM "$worker"; } <&3 >/dev/null 2>&1 & watch=$!
  exec 3<&-
  wait "$worker"; code=$?
  kill "$watch" 2>/dev/null
  exit "$code"
'
# In single quotes, between which a line may end.
command=''
for word in sh -c "$remote" join.sh "$worker" join "$coordinator" "--site=$site" ${options[@]+"${options[@]}"}; do
  command+="'${word//\'/\'\\\'\'}' "
done

# Says before each line which machine it is from.
named() {
  while IFS= read -r line || [ -n "$line" ]; do printf '%s: %s\n' "$1" "$line"; done
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pids=() inputs=()
for index in "${!hosts[@]}"; do
  mkfifo "$folder/$index"
  "${ssh[@]}" "${hosts[$index]}" "$command" < "$folder/$index" > >(named "${hosts[$index]}") 2>&1 &
  pids+=($!)
done
# One machine whose ssh has ended already is told of below, and does not end this for the others.
trap '' PIPE
# Only now, so that no other machine's ssh holds an input open.
for index in "${!hosts[@]}"; do
  exec {input}> "$folder/$index"
  { printf '%s\n' "$token" >&"$input"; } 2>/dev/null || true
  inputs+=("$input")
done

# shellcheck disable=SC2329 # A signal calls it.
leave() {
  echo "join.sh: the workers leave after their round" >&2
  for input in "${inputs[@]}"; do exec {input}>&-; done
  inputs=()
}
trap leave INT TERM

failed=0
for index in "${!hosts[@]}"; do
  # A signal ends a wait without the process having ended.
  while kill -0 "${pids[$index]}" 2>/dev/null; do wait "${pids[$index]}" || true; done
  wait "${pids[$index]}" || { echo "join.sh: ${hosts[$index]} ended with $?" >&2; failed=1; }
done
exit "$failed"
