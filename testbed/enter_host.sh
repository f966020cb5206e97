#!/bin/sh
# Runs a command on an emulated host, as ssh would: enter_host.sh [-OPTION...] NAME COMMAND...
# EMULATED_HOSTS holds what emulated_hosts.py made: NAME=PID of its first process, ...
while [ "${1#-}" != "$1" ]; do
    shift # ssh's own, such as -x
done
name=$1
shift
for host in $EMULATED_HOSTS; do
    if [ "${host%=*}" = "$name" ]; then
        exec nsenter -t "${host#*=}" --uts --net --ipc --mount --pid env -C "$PWD" sh -c "$*"
    fi
done
echo "enter_host.sh: no emulated host is called $name" >&2
exit 1
