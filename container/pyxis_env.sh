#!/usr/bin/env bash
# Prints what makes the plain command work on several nodes:
#
#   eval "$(container/pyxis_env.sh)"
#   sbatch --container-image=./ddp.sqsh jobs/prelaunch.sh
#
# The submit directory and the output directory are mounted at their own paths, with Slurm's client,
# and a project that lies elsewhere at /opt/ddp. The names of your settings are listed, so that they
# win over the image's. Mounts of your own: DDP_MOUNTS=/data:/data. For jobs on one node, --no-client
# leaves Slurm's client out.
#
# Pyxis before 0.21 knows no variables: --options prints the same as options of sbatch.
#
#   eval "sbatch $(container/pyxis_env.sh --options) --container-image=./ddp.sqsh jobs/prelaunch.sh"
#
# --step prints it for srun (jobs/interactive.sh), in variables of Slurm's own, which every Pyxis reads and
# an srun within hands on.
#
# --plugin prints the file and the arguments of this host's Pyxis, as plugstack.conf has them.
set -Eeuo pipefail

# shellcheck source=container/mounts.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/mounts.sh"

# Pyxis reads its variables into a buffer of PATH_MAX, and silently takes none that is longer.
readonly MAX_LENGTH=4095
# shellcheck disable=SC2016 # for the user's shell
readonly AS_OPTIONS='eval "sbatch $(container/pyxis_env.sh --options) --container-image=./ddp.sqsh jobs/prelaunch.sh"'

# option NAME VALUE: prints Pyxis's option --container-NAME in the form that was asked for.
option() {
    local name=${1^^}
    case $FORM in
        options) printf -- '--container-%s=%s ' "$1" "$(quote_words "$2")" ;;
        step) printf 'export SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_%s=%s\n' "$1" "$(quote_words "$2")" ;;
        *)
            ((${#2} <= MAX_LENGTH)) ||
                die "PYXIS_CONTAINER_$name must be at most $MAX_LENGTH characters for Pyxis to read it; found ${#2}; $AS_OPTIONS"
            printf 'export PYXIS_CONTAINER_%s=%s\n' "$name" "$(quote_words "$2")"
            ;;
    esac
}

# check_pyxis: what this host's plugin knows is in its file; where none is found, nothing is reported.
check_pyxis() {
    local plugin arguments
    [[ $FORM != step ]] && read -r plugin arguments < <(pyxis_plugin 2>/dev/null) || return 0
    [[ ! $arguments =~ (^| )sbatch_support=(0|false|no|n)( |$) ]] ||
        die "sbatch must know --container-image; found it switched off by this site (${BASH_REMATCH[0]# } in plugstack.conf); run DDP_IMAGE=./ddp.sqsh sbatch jobs/prelaunch.sh"
    [[ $FORM == options || ! -r $plugin ]] || grep -q PYXIS_CONTAINER_MOUNTS -- "$plugin" ||
        die "Pyxis must be 0.21 or later to read variables; found an older one, $plugin; $AS_OPTIONS"
}

# pyxis_plugin: prints the plugin's file and its arguments.
pyxis_plugin() {
    local path arguments directory
    find_configuration
    directory=$(conf_value PluginDir)
    while read -r _ path arguments; do
        if [[ ${path##*/} != *pyxis*.so ]]; then continue; fi
        [[ $path == /* ]] || path=${directory%%:*}/$path
        printf '%s %s\n' "$path" "$arguments"
        return
    done < <(plugstack_plugins)
}

mounts() {
    local client=() extra entries=("$SUBMIT:$SUBMIT")
    [[ $OUT == "$SUBMIT"/* ]] || entries+=("$OUT:$OUT")
    extra=$(project_mounts && extra_mounts)
    if [[ $extra ]]; then mapfile -t -O "${#entries[@]}" entries <<<"$extra"; fi
    if ((WITH_CLIENT)); then
        extra=$("$HERE/slurm_mounts.sh")
        IFS=, read -ra client <<<"$extra"
    fi
    join_unique "${PYXIS_CONTAINER_MOUNTS-}" "${entries[@]}" "${client[@]}"
}

# project_mounts: prints what makes the project visible where the submit directory does not, an entry a
# line, as jobs/backends/containers.py does: no image need have it.
project_mounts() {
    local project path
    project=$(dirname -- "$HERE")
    [[ $project/ != "$SUBMIT"/* ]] || return 0
    check_mountable "$project"
    for path in "$project"/{jobs,rundir,monitor,trainer} "$project"/.venv/lib/python3*/site-packages/pynvml.py; do
        if [[ -e $path ]]; then printf '%s:/opt/ddp/%s:ro\n' "$path" "${path##*/}"; fi
    done
}

# Enroot reads a variable from one line.
names() {
    local name list=()
    if [[ $FORM != options ]]; then list=(DDP_OUT DDP_PYXIS); fi # which are then set
    while IFS= read -r name; do
        if [[ ! $name ]]; then continue; fi
        if [[ ${!name} == *$'\n'* ]]; then
            log_info "warning: $name is not forwarded, its value has several lines"
        else
            list+=("$name")
        fi
    done < <(forwarded_names)
    join_unique "${PYXIS_CONTAINER_ENV-}" "${list[@]}"
}

main() {
    local all word
    help_if_asked "${1-}" "${BASH_SOURCE[0]}"
    WITH_CLIENT=1 FORM=variables
    for word in "$@"; do
        case $word in
            --no-client) WITH_CLIENT=0 ;;
            --options | --step) FORM=${word#--} ;;
            --plugin)
                pyxis_plugin
                return
                ;;
            *) die "the options are --no-client, --options, --step and --plugin; found '$word'; settings come from the environment" ;;
        esac
    done
    SUBMIT=$(pwd -P)
    check_mountable "$SUBMIT"
    resolve_out
    check_mountable "$OUT"
    check_pyxis
    all=$(lines)
    # A mount's source must exist, and this one is ours to make.
    make_out
    printf '%s\n' "$all"
}

# All lines or none: half a setting would lose a job's output.
lines() {
    local value
    if [[ $FORM != options ]]; then
        printf 'export DDP_OUT=%s\n' "$(quote_words "$OUT")"
        # What the host knows of its Pyxis, for a batch script in a container.
        value=$(pyxis_plugin 2>/dev/null | cut -d ' ' -f 2-) || value=
        printf 'export DDP_PYXIS=%s\n' "$(quote_words "$value")"
    fi
    value=$(mounts)
    option mounts "$value"
    option workdir "${PYXIS_CONTAINER_WORKDIR:-$SUBMIT}"
    value=$(names)
    if [[ $value ]]; then option env "$value"; fi
}

main "$@"
