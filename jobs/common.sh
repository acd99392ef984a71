# shellcheck shell=bash
# What the scripts for a shell share: where they lie, messages and help. Sourced.

# With a CDPATH of the user's, cd prints where it went.
# shellcheck disable=SC2034 # read by those who source it
JOBS_DIR=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)

# People read standard error, programs standard output. A log on a full disk must not end anything.
log_info() {
    local name=${0##*/}
    printf '%s: %s\n' "${name%.sh}" "$*" >&2 || :
}

# die MESSAGE: the user's input or environment is wrong; one line.
die() {
    local message=$*
    log_info "${message//$'\n'/ }"
    exit 64
}

# help_if_asked WORD SCRIPT: prints the words at a script's head, or the version, and ends.
help_if_asked() {
    case $1 in
        -h | --help) sed -n '2,/^[^#]/{/^#SBATCH/d; s/^# \{0,1\}//p}' "$2" ;;
        --version) sed -n 's/^__version__ = "\(.*\)"$/ddp \1/p' "$(dirname -- "$2")/../trainer/__init__.py" ;;
        *) return 0 ;;
    esac
    exit 0
}

# split_words WORD...: into `options` for sbatch, up to a --, and `words` for the jobs: options of the trainer,
# or a command, before which prelaunch.sh has a -- of its own.
split_words() {
    options=() words=()
    while (($#)) && [[ $1 != -- ]]; do
        # Settings travel to the jobs in the environment.
        [[ $1 != --export=* && $1 != --export ]] ||
            die "--export must be left away, because the jobs' settings travel in the environment; found $1; export what they need before"
        options+=("$1")
        shift
    done
    if (($#)); then shift; fi
    if (($#)) && [[ $1 != -* ]]; then words=(--); fi
    words+=("$@")
}

# resolve_out: sets OUT to DDP_OUT, or out/, as an absolute path.
resolve_out() {
    OUT=${DDP_OUT:-out}
    [[ $OUT != "~"* ]] || die "DDP_OUT must be a path, in which no shell has to replace ~; found '$OUT'; write \$HOME, or leave out the quotes"
    [[ $OUT == /* ]] || OUT=$(pwd -P)/$OUT
}

make_out() {
    mkdir -p -- "$OUT" 2>/dev/null && [[ -w $OUT ]] ||
        die "DDP_OUT must be a directory you can write to; found $OUT is not; set it to another one"
}

# quote_words WORD...: for sh, which has no $'…'.
quote_words() {
    local word separator=''
    for word in "$@"; do
        printf "%s'%s'" "$separator" "${word//\'/\'\\\'\'}"
        separator=' '
    done
}
