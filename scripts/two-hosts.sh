# SPDX-License-Identifier: BSD-3-Clause
# two-hosts - what quickstart --two-hosts shows: a table served by one bulkheadd, read by another one.
# Sourced by scripts/quickstart, whose variables and functions it uses.

ask() { local name=$1; shift; "$prefix/bin/bulkheadctl" -s "$run/$name.sock" "$@"; }
named_ready() { curl --silent --fail --max-time 2 --unix-socket "$run/$1.sock" http://localhost/readyz >/dev/null; }

# start_named NAME OPTION…: leaves the process in $host.
start_named()
{
    local name=$1

    shift
    "$prefix/sbin/bulkheadd" -c "$examples/$name.ini" --set "host.runtime_dir=$run" "$@" 2>"$run/$name.log" &
    host=$!
    wait_for 60 named_ready "$name" && return
    tail -n 20 "$run/$name.log" >&2
    die "the host \"$name\" did not get ready; above is the end of its log"
}

# From JSON on stdin: the Python expression $1 of `r`, the call's result.
result() { "$python" -c "import json, sys
r = json.load(sys.stdin)['result']
$1"; }

# The row of the table that "$1" would be.
letters()
{
    "$python" -c 'import json, string, sys
counts = [sys.argv[1].lower().count(letter) for letter in string.ascii_lowercase]
length = sum(n * n for n in counts) ** 0.5 or 1.0
print(json.dumps({"row": [n / length for n in counts]}))' "$1"
}

# The same sum, from the file, by Python alone.
sum_of_file() { "$python" -c 'import array, os, sys
table = array.array("f")
with open(sys.argv[1], "rb") as file:
    table.fromfile(file, os.path.getsize(sys.argv[1]) // table.itemsize)
print(f"  the sum of all numbers, from the file by plain Python:  {sum(table):.2f}")' "$run/table.f32"; }

stop_named()
{
    local name=$1 pid=$2 status

    kill -TERM "$pid"
    wait "$pid"
    status=$?
    echo "  $name: exit status $status"
    [ "$status" -eq 0 ] || { tail -n 20 "$run/$name.log" >&2; die "the host \"$name\" should have ended with 0"; }
}

show_two_hosts()
{
    local examples=$prefix/share/bulkhead/examples/rdmatable text

    # shellcheck disable=SC2086 # a list of paths without blanks
    "$python" "$examples/make_table.py" $texts "$run/table.f32" >"$run/lines" || die "no table could be made"
    [ -s "$run/lines" ] || die "no table could be made: no line in $texts has a letter"
    say "2. A table of $(wc -l <"$run/lines") rows, how often each letter occurs in each line of $texts"

    start_named serve --set "app serve.option.file=$run/table.f32"
    peer=$host
    start_named pull
    say "3. Two hosts: \"serve\" has registered the file's rows, \"pull\" is to read them"
    ask serve status | indent
    tail -n 1 <<<"$(grep -F 'serving' "$run/serve.log")" | tell_log

    say "4. The regions' descriptors go from one to the other as JSON; the rows then go by RDMA"
    ask serve --json call serve table >"$run/table.json" || die "serve gave no table"
    "$python" -c 'import json, sys; print(json.dumps({"table": json.load(sys.stdin)["result"]}))' \
        <"$run/table.json" >"$run/attach.json"
    # A large table has more descriptors than a command line takes.
    curl --silent --unix-socket "$run/pull.sock" -d "@$run/attach.json" http://localhost/v1/apps/pull/attach |
        result 'print("  attached: {rows} rows in {shards} regions".format(**r))' || die "attach failed"
    ask pull --json call pull verify "{\"path\": \"$run/table.f32\"}" >"$run/verify.json" || die "verify failed"
    result 'print("  read {bytes} bytes; equal to the file: {equal}".format(**r))
print("  the sum of all numbers, by stream kernels on what came: {sum:.2f}".format(**r))
sys.exit(not r["equal"])' <"$run/verify.json" || die "what was read is not what the file has"
    sum_of_file

    text="you may not use this file except in compliance"
    say "5. The rows most like \"$text\", scored where they arrived"
    ask pull --json call pull best "$(letters "$text")" | "$python" -c '
import json, sys
lines = open(sys.argv[1], encoding="utf-8", errors="replace").read().splitlines()
for hit in json.load(sys.stdin)["result"]:
    print("    {:.2f}  {:.90}".format(hit["score"], lines[hit["row"]]))' "$run/lines" || die "no answer"

    say "6. What the plugins say of themselves (bulkheadctl plugins)"
    ask pull plugins | indent
    say "7. SIGTERM to both"
    stop_named pull "$host"
    host=""
    stop_named serve "$peer"
    peer=""
}
