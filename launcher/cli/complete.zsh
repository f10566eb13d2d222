#compdef launcher
# Completion of the launcher for zsh: `launcher complete --print zsh`.

_launcher_fill() {  # SKIP: the number of words that start the launcher; its arguments follow them
  local skip=$1 each
  local -a program own found plain open
  program=("${(@)words[1,skip]}")
  program[1]=${program[1]/#\~\//$HOME/}
  own=("${(@Q)words[skip+1,CURRENT-1]}" "${(Q)PREFIX}")
  found=("${(@f)$(LAUNCHER_COMPLETE="${(pj:\n:)own}"$'\n.' "${program[@]}" complete --candidates 2>/dev/null)}")
  for each in "${(@)found}"; do
    case $each in
      '') ;;
      *[=./]) open+=("$each") ;;
      *) plain+=("$each") ;;
    esac
  done
  (( $#plain )) && compadd -- "${(@)plain}"
  (( $#open )) && compadd -S '' -- "${(@)open}"
  (( $#plain + $#open )) || _files
}

_launcher() { _launcher_fill 1 }

# Completes arguments of python only after `-m launcher`; otherwise it calls the completion that was set before.
_launcher_python() {
  if [[ ${words[2]-} == -m && ${words[3]-} == launcher ]] && (( CURRENT > 3 )); then
    _launcher_fill 3
  elif [[ -n ${_launcher_before-} ]]; then
    $_launcher_before "$@"
  else
    _files
  fi
}

if ! (( $+functions[compdef] )); then
  autoload -Uz compinit && compinit
fi
[[ ${_comps[python]-} == _launcher_python ]] || _launcher_before=${_comps[python]-}
compdef _launcher launcher
compdef _launcher_python python python3
