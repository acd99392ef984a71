# shellcheck shell=bash disable=SC2034 # the codes are used by the other parts
# ddp jobs library: messages, JSON, events, processes.
# Sourced by every script of this folder; knows neither Slurm nor training.

readonly EXIT_USAGE=64   # the user's input or environment is wrong: no retry
readonly EXIT_FAILED=70  # a rank failed
readonly EXIT_STOPPED=75 # stopped on request, a checkpoint is written
readonly EXIT_HUNG=76    # a rank is stuck

# ---- messages: people read stderr, programs read stdout -----------------------------------------

# A log on a full disk must not end the job.
log_info() {
    printf '%s: %s\n' "${LOG_NAME:-ddp}" "$*" >&2 || :
}

die() {
    local message=$*
    log_info "${message//$'\n'/ }"
    exit "$EXIT_USAGE"
}

# make_writable DIRECTORY: makes it, or says who may not write where, and what helps in this place.
make_writable() {
    local there=$1 why owner remedy='set DDP_OUT to a directory that you can write to'
    why=$(mkdir -p -- "$1" 2>&1) || :
    [[ ! -d $1 || ! -w $1 ]] || return 0
    while [[ ! -e $there ]]; do there=$(dirname -- "$there"); done
    owner=$(stat -c %u:%g -- "$there")
    why=${why##*: }
    if [[ ${SLURM_JOB_ID-} ]]; then
        remedy='set DDP_OUT to a directory on the shared file system'
    elif ((${IN_CONTAINER:-0})) && [[ ${why:-Permission denied} == 'Permission denied' ]]; then
        remedy="give it to user $(id -u) on the host (chown), or run as its owner (docker run --user $owner)"
    elif ((${IN_CONTAINER:-0})); then
        remedy="mount a directory that can be written to (docker run -v \"\$PWD/out:/out\")"
    fi
    die "the run directory must be writable, found that user $(id -u) cannot write to $there of user ${owner%:*}${DDP_NODE:+ on $DDP_NODE} (${why:-Permission denied}): $remedy"
}

# counted NUM NOUN: prints "1 rank" or "2 ranks".
counted() {
    echo "$1 $2$( (($1 == 1)) || echo s)"
}

# print_head SCRIPT: the words at its head, which are its help.
print_head() {
    sed -n '2,/^[^#]/{/^#SBATCH/d; s/^# \{0,1\}//p}' "$1"
}

# help_if_asked WORD SCRIPT: prints a script's help, or the version, and ends.
help_if_asked() {
    case $1 in
        -h | --help) print_head "$2" ;;
        --version) print_version "$(dirname -- "$2")/.." ;;
        *) return 0 ;;
    esac
    exit 0
}

# print_version ROOT: the version of the project in that directory.
print_version() {
    sed -n 's/^__version__ = "\(.*\)"$/ddp \1/p' "$1/trainer/__init__.py"
}

# refuse_export OPTION...: what a script tells its jobs travels in the environment.
refuse_export() {
    local word
    for word in "$@"; do
        [[ $word != --export=* && $word != --export ]] ||
            die "--export must be left away, because the jobs' settings travel in the environment, found $word: export what they need before"
    done
}

# Bash tracing with time, host and line, for DEBUG=on.
trace_start() {
    PS4='+ \D{%H:%M:%S} \h ${BASH_SOURCE[0]##*/}:${LINENO}: '
    set -x
}

# parse_switch NAME VALUE: prints 1 or 0; anything that is neither is the user's mistake.
parse_switch() {
    case ${2,,} in
        1 | on | y | yes | t | true) echo 1 ;;
        0 | off | n | no | f | false) echo 0 ;;
        *) die "$1 must be 1/0, on/off, yes/no or true/false, found '$2': set one of these, or unset it" ;;
    esac
}

# require_integer NAME VALUE MIN MAX. With a leading zero bash would take it for an octal one.
require_integer() {
    if [[ ! $2 =~ ^(0|[1-9][0-9]{0,8})$ ]] || (($2 < $3 || $2 > $4)); then
        die "$1 must be a whole number from $3 to $4, found '$2': correct it, or unset it for the default"
    fi
}

readonly EVENT_LOCK_S=2 # then it is written all the same

# ---- JSON and events ----------------------------------------------------------------------------

# json_quote TEXT: sets JSON to it as a string; without a process, because a start writes many.
json_quote() {
    local text=$1 backslash=$'\\'
    text=${text//\\/"$backslash$backslash"}
    text=${text//\"/'\"'}
    text=${text//$'\n'/'\n'}
    text=${text//$'\t'/'\t'}
    text=${text//[[:cntrl:]]/'?'}
    JSON="\"$text\""
}

json_string() {
    json_quote "$1"
    printf '%s' "$JSON"
}

json_list() {
    local separator='' item
    printf '['
    for item in "$@"; do
        json_quote "$item"
        printf '%s%s' "$separator" "$JSON"
        separator=', '
    done
    printf ']'
}

# json_or_null VALUE: an empty value does not exist.
json_or_null() {
    if [[ $1 ]]; then json_string "$1"; else printf 'null'; fi
}

# time_utc: sets NOW, to the millisecond.
time_utc() {
    local now=${EPOCHREALTIME-$(date +%s.%N)} fraction
    fraction=${now#*[^0-9]} # the separator is the locale's
    TZ=UTC0 printf -v NOW '%(%Y-%m-%dT%H:%M:%S)T.%sZ' "${now%%[^0-9]*}" "${fraction:0:3}"
}

# event_write NAME [KEY JSON]...: one line, one write. A full disk must not end the job. Under a lock, if
# there are any here: on NFS, two nodes that append in the same moment write over each other.
event_write() {
    local line NOW JSON
    time_utc
    json_quote "$DDP_NODE"
    line="{\"time\": \"$NOW\", \"event\": \"$1\", \"source\": \"$LOG_NAME\""
    line+=", \"attempt\": $DDP_ATTEMPT, \"host\": $JSON"
    shift
    while (($#)); do
        line+=", \"$1\": $2"
        shift 2
    done
    {
        event_lock
        # dd, because printf splits what is longer than its buffer into several writes.
        printf '%s}\n' "$line" |
            dd bs=1M iflag=fullblock oflag=append conv=notrunc of="$DDP_RUN_DIR/events.jsonl" status=none
    } 9<>"$DDP_RUN_DIR/events.jsonl" ||
        log_info "could not append to $DDP_RUN_DIR/events.jsonl; going on"
}

# event_lock: of descriptor 9. A moment in the queue keeps events in order; a thousand ranks come up at
# once, and NFS forgets who waits: then each tries again in its time.
event_lock() {
    local deadline=$((SECONDS + EVENT_LOCK_S + ${WORLD_SIZE:-1} / 50)) code
    while :; do
        code=0
        flock -w 0.3 9 2>/dev/null || code=$?
        # 1: somebody has it; anything else: it is ours, or there are no locks here.
        if ((code != 1 || SECONDS >= deadline)); then return 0; fi
        sleep "0.0$((RANDOM % 9 + 1))"
    done
}

# event_field NAME LINE: prints the plain value of one key of an event written above.
event_field() {
    local pattern="\"$1\": \"?([^,\"}]*)"
    [[ $2 =~ $pattern ]] && printf '%s' "${BASH_REMATCH[1]}"
}

# event_text NAME LINE: prints a text of one key, which may hold anything, without its escapes.
event_text() {
    local pattern="\"$1\": \"(([^\"\\]|\\\\.)*)\"" text
    [[ $2 =~ $pattern ]] || return 0
    text=${BASH_REMATCH[1]//\\\"/\"}
    text=${text//\\[nrt]/ }
    printf '%s' "${text//\\\\/\\}"
}

# ---- processes ----------------------------------------------------------------------------------
#
# bash 5.2 breaks off with a syntax error if a trap runs while it parses a command or process
# substitution. So between setting its traps and ignoring signals again, a script uses neither in
# its own shell: it prepares before, waits, and puts what it must do meanwhile into subshells. Nor
# does a trap itself use `read`: the one that it interrupts would forget its timeout and never return.
# And a subshell that a trap starts uses `read` before any substitution: it still has the timeout of the
# one that was interrupted, which would end there, and the subshell would go on with its parent's work.

# aside COMMAND...: runs it in a subshell that no signal disturbs, while this shell waits for it and
# acts on its traps. The subshell leaves what it finds out in a file. Returns the command's code.
aside() {
    (
        trap '' INT TERM HUP USR1
        trap - EXIT
        "$@"
    ) </dev/null &
    await "$!" 0.01
}

# await PID [POLL_S]: waits for a child of this shell; returns its code. The builtin is asked only when
# the child has ended: a trap that interrupts it just after the kernel gave it the child loses the
# child's code, and it then waits for ever. Until then bash takes a dead child from the kernel by
# itself, and remembers its code. Meanwhile nothing is opened: while the kernel ends the child for want of
# memory there is none for a file either, and this shell would be the next.
await() {
    local code
    while kill -0 "$1" 2>&"$NULL_FD"; do pause "${2:-0.1}"; done
    while :; do
        INTERRUPTED=0
        code=0
        wait "$1" 2>/dev/null || code=$? # its stderr: bash announces killed jobs there
        ((INTERRUPTED)) || return "$code"
    done
}

# pause SECONDS: waits without a child process, so that nothing outlives a killed shell.
pause() {
    read -rt "$1" -u "$PAUSE_FD" || :
}
exec {PAUSE_FD}<> <(:) {NULL_FD}>/dev/null

# pause_unless_stopped SECONDS: a trap that sets STOP_SIGNAL ends it.
pause_unless_stopped() {
    local deadline=$((SECONDS + $1))
    while ((SECONDS < deadline)) && [[ ! $STOP_SIGNAL ]]; do pause 0.2; done
}

# A zombie has ended: it only waits for its parent.
process_alive() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    [[ ${stat##*) } != [ZX]* ]]
}

# processes_with NAME=VALUE: ids of the processes that were started with it in their environment.
processes_with() {
    local file pid
    while IFS= read -r file; do
        pid=${file#/proc/}
        pid=${pid%%/*}
        if [[ $pid != "$$" && $pid != "$BASHPID" ]]; then printf '%s\n' "$pid"; fi
    done < <(grep -lszFx -e "$1" /proc/[0-9]*/environ || :)
}

# processes_writing FILE: ids of the processes whose output it is. So those are found that cleared their
# environment (env -i) or wrote a title over it (setproctitle). Never of a device: /dev/null is everybody's.
processes_writing() {
    local link pid
    [[ -f $1 ]] || return 0
    for link in /proc/[0-9]*/fd/[12]; do
        if [[ $link -ef $1 ]]; then
            pid=${link#/proc/}
            printf '%s\n' "${pid%%/*}"
        fi
    done
}

# catches_signal PID NAME: has the process a handler of its own for the signal?
catches_signal() {
    local mask number
    mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null) || return 1
    number=$(kill -l "$2")
    [[ $mask ]] && ((16#${mask: -8} >> (number - 1) & 1))
}

# stop_processes GRACE_S PID...: TERM, then KILL for what is left after the grace.
stop_processes() {
    local deadline=$((SECONDS + $1)) pid alive
    shift
    (($#)) || return 0
    kill -TERM "$@" 2>/dev/null || :
    while :; do
        alive=()
        for pid in "$@"; do
            if process_alive "$pid"; then alive+=("$pid"); fi
        done
        ((${#alive[@]})) || return 0
        if ((SECONDS >= deadline)); then break; fi
        pause 0.1
    done
    kill -KILL "${alive[@]}" 2>/dev/null || :
}

# signal_options OPTION...: prints those of env for signals; none before coreutils 8.31, which knew none.
signal_options() {
    if env "$@" true 2>/dev/null; then printf '%s\n' "$@"; fi
}

# with_parent SIGNAL: prints the words that, before a command, have SIGNAL end it when its parent dies;
# none without setpriv.
with_parent() {
    if setpriv --pdeathsig "$1" true 2>/dev/null; then
        printf '%s\n' setpriv --pdeathsig "$1" --
    fi
}

# oom_kills: this process's cgroup, and how many of its processes the kernel has ended for want of memory;
# empty if it does not say.
oom_kills() {
    local line group folder file kills
    while IFS= read -r line; do
        group=${line#*:*:}
        case $line in
            0::*) folder=/sys/fs/cgroup file=memory.events ;;
            *:memory:*) folder=/sys/fs/cgroup/memory file=memory.oom_control ;;
            *) continue ;;
        esac
        # Docker shows a container its own group as the root, and names it as the host does.
        for file in "$folder$group/$file" "$folder/$file"; do
            kills=$(sed -n 's/^oom_kill //p' "$file" 2>/dev/null || :)
            if [[ $kills ]]; then
                echo "$group $kills"
                return 0
            fi
        done
    done </proc/self/cgroup
}

# signal_of_code CODE: the signal's name if the code is 128+N, else nothing.
signal_of_code() {
    if (($1 > 128 && $1 <= 192)); then kill -l $(($1 - 128)) 2>/dev/null || :; fi
}

# describe_code CODE: words for a person.
describe_code() {
    local signal
    signal=$(signal_of_code "$1")
    if [[ $signal ]]; then
        printf 'was killed by signal %d (SIG%s), code %d' $(($1 - 128)) "$signal" "$1"
    else
        printf 'ended with code %d' "$1"
    fi
}

# ---- where our Python is ------------------------------------------------------------------------

# find_python ROOT: the interpreter that runs trainer and monitor; none is not an error here.
# In the image its own comes first: a .venv in a mounted directory was made for the host.
find_python() {
    local candidate
    for candidate in "${DDP_PYTHON-}" "${DDP_HOME:+$DDP_HOME/.venv/bin/python}" "$1/.venv/bin/python" python3; do
        if [[ $candidate ]] && command -v "$candidate" >/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
}

# python_is_new PYTHON: is it 3.11 or later? Ours is, and need not be asked.
python_is_new() {
    [[ $1 == */.venv/bin/python ]] || "$1" -c 'import tomllib' 2>/dev/null
}

# python_command ROOT PYTHON MODULE: prints, a word a line, how one of our modules is run.
# -P keeps a trainer.py in the working directory from being taken for ours.
python_command() {
    printf '%s\n' env "PYTHONPATH=$1${PYTHONPATH:+:$PYTHONPATH}" "$2" -P -m "$3"
}
