# Completion of the launcher for bash: `launcher complete --print bash`.

_launcher_fill() {  # SKIP: the number of words that start the launcher; its arguments follow them
  local line=${COMP_LINE:0:COMP_POINT} words skip=$1 breaks="" prefix="" each
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=("")
  local program=("${words[@]:0:skip}") word=${words[${#words[@]} - 1]}
  program[0]=${program[0]/#\~\//$HOME/}
  # bash splits `workload=ddp` into three words, and a completion replaces the last of them.
  [[ $COMP_WORDBREAKS != *=* ]] || breaks+="="
  [[ $COMP_WORDBREAKS != *:* ]] || breaks+=":"
  [[ -z $breaks ]] || prefix=${word%"${word##*[$breaks]}"}
  COMPREPLY=()
  while IFS= read -r each; do
    each=${each#"$prefix"}
    [[ $each != *[^][A-Za-z0-9_.,:=+/@%-]* ]] || printf -v each %q "$each"  # quotes a name with special characters
    COMPREPLY+=("$each")
  done < <(LAUNCHER_COMPLETE="$(printf '%s\n' "${words[@]:skip}" .)" "${program[@]}" complete --candidates 2>/dev/null)
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]]; then
    compopt -o nospace 2>/dev/null
  fi
}

_launcher() { _launcher_fill 1; }

# Completes arguments of python only after `-m launcher`; otherwise it calls the completion that was set before.
_launcher_python() {
  local words
  read -ra words <<<"${COMP_LINE:0:COMP_POINT}x"  # the x makes an empty last word count
  if [[ ${words[1]-} == -m && ${words[2]-} == launcher && ${#words[@]} -gt 3 ]]; then
    _launcher_fill 3
  elif [[ -n ${_launcher_before-} ]]; then
    "$_launcher_before" "$@"
  fi
}

_launcher_now=$(complete -p python 2>/dev/null | sed -n 's/.*-F \([^ ]*\).*/\1/p')
[[ $_launcher_now == _launcher_python ]] || _launcher_before=$_launcher_now
unset _launcher_now
complete -o default -F _launcher launcher
complete -o bashdefault -o default -F _launcher_python python python3
