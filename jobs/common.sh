# shellcheck shell=bash
# What the scripts for a shell share: messages and help. Sourced; LOG_NAME is the script's own.

# People read standard error, programs standard output. A log on a full disk must not end anything.
log_info() {
    printf '%s: %s\n' "${LOG_NAME:-ddp}" "$*" >&2 || :
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

# refuse_export OPTION...: what a script tells its jobs travels in the environment.
refuse_export() {
    local word
    for word in "$@"; do
        [[ $word != --export=* && $word != --export ]] ||
            die "--export must be left away, because the jobs' settings travel in the environment; found $word; export what they need before"
    done
}
