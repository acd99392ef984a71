# shellcheck shell=bash disable=SC2034 # set here, read by those who source it
# What this host's slurm.conf and plugstack.conf say. Sourced by mounts.sh.

# In Turkish neither is I the capital of i, nor does sed's I take it for one; and Pyxis counts bytes.
export LC_ALL=C

# conf_files FILE: prints a configuration and what it includes, a file a line.
conf_files() {
    local file=$1 path included
    [[ -r $file ]] || return 0
    printf '%s\n' "$file"
    while read -r path; do
        [[ $path == /* ]] || path=$(dirname -- "$file")/$path
        while IFS= read -r included; do
            conf_files "$included"
        done < <(compgen -G "$path" || :)
    done < <(sed -nE 's/#.*//; s/^[[:space:]]*include[[:space:]]+//Ip' "$file")
}

# conf_value KEY: prints its last value in $CONF, without quotes; keys are case-insensitive.
conf_value() {
    local files=()
    mapfile -t files < <(conf_files "$CONF")
    sed -nE "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*\"?([^\"#]*[^\"#[:space:]]).*/\1/Ip" "${files[@]}" | tail -n 1
}

# find_configuration: sets CONF, and CONF_AS_FOUND, which may be a link to it.
find_configuration() {
    local file
    for file in "${SLURM_CONF-}" /etc/slurm/slurm.conf /etc/slurm-llnl/slurm.conf /run/slurm/conf/slurm.conf; do
        if [[ $file && -r $file ]]; then
            CONF=$(realpath -- "$file") CONF_AS_FOUND=$file
            return
        fi
        [[ ! $file || $file != "${SLURM_CONF-}" ]] ||
            die "SLURM_CONF must name a readable file; found '$file'; correct it, or unset it"
    done
    die "Slurm's configuration must be on this host; found no /etc/slurm/slurm.conf; run this where sbatch works, or set SLURM_CONF"
}

# plugstack_files: prints plugstack.conf and what it includes, a file a line.
plugstack_files() {
    local file
    file=$(conf_value PlugStackConfig)
    conf_files "${file:-${CONF%/*}/plugstack.conf}"
}

# plugstack_plugins: prints them a line each: required or optional, file, arguments.
plugstack_plugins() {
    local file
    while IFS= read -r file; do
        sed -nE 's/#.*//; s/^[[:space:]]*((required|optional)[[:space:]])/\1/p' "$file"
    done < <(plugstack_files)
}
