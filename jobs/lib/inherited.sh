# shellcheck shell=bash
# What the user exported reaches the ranks as it was, also under names that these scripts use for
# themselves: bash exports again whatever is assigned to a name that came from the environment.
#
# Before anything else a script keeps in INHERITED what it was started with.

declare -a GIVEN_BACK=()

# What is set for the ranks on purpose, and what every shell changes.
readonly SET_ON_PURPOSE='^(DDP_.*|S(LURM|RUN|BATCH|ALLOC)_.*|PYXIS_.*|((LOCAL|NODE|GROUP)_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|DEBUG|ENVIRONMENT|_|(OLD)?PWD|SHLVL|POSIXLY_CORRECT)$'

# inherited_forget: what DDP_CHOSEN names is no user's wish: this script was started by a rank of another
# job, or by a job that such a rank submitted, and the other one had chosen that for itself.
inherited_forget() {
    local name
    for name in ${DDP_CHOSEN-} DDP_CHOSEN; do
        if [[ $name =~ ^[A-Z][A-Z0-9_]*$ ]]; then unset "$name" "INHERITED[$name]"; fi
    done
}

# inherited_give_back: sets GIVEN_BACK to what env has to set for a program to see the user's own. An
# array of the same name is not exported, and a local variable hides one: both are found as changed.
inherited_give_back() {
    local -
    { set +x; } 2>/dev/null # within this function: tokens do not belong into a trace
    GIVEN_BACK=()
    for REPLY in "${!INHERITED[@]}"; do
        if [[ ! $REPLY =~ $SET_ON_PURPOSE && ${!REPLY-} != "${INHERITED[$REPLY]}" ]]; then
            GIVEN_BACK+=("$REPLY=${INHERITED[$REPLY]}")
        fi
    done
}
