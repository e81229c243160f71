# What guest scripts judge with. Prints "PASS name" or "FAIL name" with what the program said.

said=/tmp/said

pass() { echo "PASS $1"; }
fail() { echo "FAIL $1"; sed 's/^/  /' $said | tail -12; }
check() { # NAME COMMAND...: it succeeds
  name=$1; shift
  if "$@" > $said 2>&1; then pass $name; else fail $name; fi
}
expect() { # NAME CODE WORDS COMMAND...: the program ends with this code and says these words
  name=$1; code=$2; words=$3; shift 3
  "$@" > $said 2>&1; got=$?
  if [ $got = $code ] && grep -qi -- "$words" $said; then pass $name; else echo "  exit $got, expected $code and '$words'" >> $said; fail $name; fi
}
wait_for() { # COMMAND...: at most 30 s
  for _ in $(seq 150); do "$@" > /dev/null 2>&1 && return 0; sleep 0.2; done
  return 1
}
