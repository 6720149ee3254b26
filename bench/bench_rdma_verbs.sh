#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# bench_rdma_verbs - the verbs transport against perftest, on one device, in turn in each round.
#
# Meant to run in scripts/rdma-vm; `make bench-rdma-verbs` does that. The lines that begin with "ratio"
# are for machines: "ratio NAME VALUE OP LIMIT ok|short", of the medians of ROUNDS (preset 11) rounds.
# Both measure the same: 48 transfers of 1 MiB, as many at once as the device takes; a write of 8 bytes until it is seen in the
# peer's memory, polling; a read of 8 bytes, polling and with completion events (ib_write_lat has none).
# Usage: bench_rdma_verbs.sh PROGRAM
set -u
ours=${1:?usage: bench_rdma_verbs.sh PROGRAM} rounds=${ROUNDS:-11}
device=${RDMA_VM_DEVICE:?run it by scripts/rdma-vm} gid=${RDMA_VM_GID:?} address=${RDMA_VM_ADDRESS:?}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
command -v ib_write_bw >/dev/null || { echo "no ib_write_bw (Debian: perftest)" >&2; exit 77; }

# perftest COLUMN TOOL ARG…: the figure in that column of the line of figures; the server's tries to be
# there are bounded by the client's.
port=18515
perftest()
{
	local column=$1 tries server line

	shift
	port=$((port + 1))
	timeout 60 taskset -c 1 "$@" -d "$device" -x "$gid" -F -p $port >/dev/null 2>&1 &
	server=$!
	for ((tries = 0; tries < 10; tries++)); do
		line=$(timeout 60 taskset -c 0 "$@" -d "$device" -x "$gid" -F -p $port "$address" 2>/dev/null |
			awk -v c="$column" '$1 ~ /^[0-9]+$/ && NF >= 5 { print $c }')
		[ -n "$line" ] && break
		sleep 0.2
	done
	wait $server
	echo "$line"
}

# name; ours; perftest's column, tool and arguments
run()
{
	# shellcheck disable=SC2086 # lists of arguments
	timeout 60 "$ours" $2 >>"$dir/$1.ours"
	# shellcheck disable=SC2086
	perftest $3 >>"$dir/$1.bare"
}

for ((round = 1; round <= rounds; round++)); do
	run write_bw_1MiB "write_bw 48" "4 ib_write_bw -s 1048576 -n 48"
	run read_bw_1MiB "read_bw 48" "4 ib_read_bw -s 1048576 -n 48"
	run write_lat "write_lat 500" "5 ib_write_lat -s 8 -n 500"
	run read_lat "read_lat 500" "5 ib_read_lat -s 8 -n 500"
	run read_lat_events "read_lat 500 events" "5 ib_read_lat -s 8 -n 500 -e"
done

median() { grep -E '^[0-9.]+$' "$1" | sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'; }

# ratio NAME OP LIMIT FACTOR UNIT: FACTOR makes perftest's unit ours. Without a limit: for comparison.
ratio()
{
	local a b

	a=$(median "$dir/$1.ours") b=$(median "$dir/$1.bare")
	awk -v name="$1" -v a="${a:-0}" -v b="${b:-0}" -v op="$2" -v limit="$3" -v factor="$4" -v unit="$5" 'BEGIN {
		b *= factor; r = b ? a / b : 0
		printf "%-16s ours %10.2f %s, perftest %10.2f %s\n", name, a, unit, b, unit
		if (op == "") exit
		ok = r && (op == ">=" ? r >= limit : r <= limit)
		printf "ratio rdma_verbs_%s %.3f %s %s %s\n", name, r, op, limit, ok ? "ok" : "short"
		exit !ok }'
}

# perftest's MB are 2^20 bytes.
status=0
ratio write_bw_1MiB '>=' 0.85 1.048576 MB/s || status=1
ratio read_bw_1MiB '>=' 0.85 1.048576 MB/s || status=1
ratio write_lat '<=' 1.1 1 us || status=1
ratio read_lat '' '' 1 us
ratio read_lat_events '<=' 1.3 1 us || status=1
exit $status
