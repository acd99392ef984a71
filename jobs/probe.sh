#!/usr/bin/env bash
# Run on the node of rank 0: prints "ADDRESS PORT".
#
#   probe.sh JOB_NUMBER INTERFACE PORT
#
# ADDRESS is the interface's (or "-" without one); PORT is the wanted one if it is free, or else
# chosen by the job's number outside the ephemeral range, the next one if it is taken.
# Exit 3: the interface has no address; exit 4: the wanted port is taken.
# It needs no file beside it: on a remote node it arrives through standard input.
set -Eeuo pipefail

# Local ports of every TCP socket that is not in TIME_WAIT (06), one a line, decimal.
ports_in_use() {
    local _ local_address state
    while read -r _ local_address _ state _; do
        if [[ $state != 06 && $local_address == *:* ]]; then echo $((16#${local_address##*:})); fi
    done < <(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -v local_address)
}

interface_address() {
    if command -v ip >/dev/null; then
        # Global addresses only; IPv4 before IPv6.
        { ip -o -4 addr show dev "$1" scope global && ip -o -6 addr show dev "$1" scope global; } |
            awk 'NR == 1 { sub("/.*", "", $4); print $4 }'
    else
        python3 - "$1" <<'PYTHON'
import fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    request = struct.pack("256s", sys.argv[1].encode()[:15])
    print(socket.inet_ntoa(fcntl.ioctl(s.fileno(), 0x8915, request)[20:24]))  # SIOCGIFADDR
PYTHON
    fi 2>/dev/null
}

# The larger of the two ranges beside the ephemeral one, clear of the well-known ports. Where that one
# leaves little room (1024 to 65535 is a common tuning), all of them.
port_range() {
    local low high below above
    read -r low high </proc/sys/net/ipv4/ip_local_port_range
    below=$((low - 10000)) above=$((65535 - high))
    if ((below < 1000 && above < 1000)); then
        echo "10000 65535"
    elif ((below >= above)); then
        echo "10000 $((low - 1))"
    else
        echo "$((high > 9999 ? high + 1 : 10000)) 65535"
    fi
}

free_port() {
    local number=$1 taken=$2 first last span offset port
    read -r first last < <(port_range)
    span=$((last - first + 1))
    for ((offset = 0; offset < span; offset++)); do
        port=$((first + (number + offset) % span))
        if [[ $taken != *" $port "* ]]; then
            echo "$port"
            return 0
        fi
    done
    return 4
}

main() {
    local number=$1 interface=$2 port=$3 address=- taken
    if [[ $interface ]]; then
        address=$(interface_address "$interface") || :
        [[ $address ]] || exit 3
    fi
    taken=" $(ports_in_use | sort -un | tr '\n' ' ')"
    if [[ ! $port ]]; then
        port=$(free_port "$number" "$taken")
    elif [[ $taken == *" $port "* ]]; then
        exit 4
    fi
    echo "$address $port"
}

main "$@"
