/* user WORK COUNT: does the work, and says what that took. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

unsigned long fibonacci(unsigned long n);
unsigned long remainders(unsigned long count);

static unsigned long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

int main(int arguments, char **argument)
{
	unsigned long long begun, taken;
	unsigned long count, result;

	if (arguments != 3)
		return 2;
	count = strtoul(argument[2], 0, 10);
	begun = now();
	result = (argument[1][0] == 'f' ? fibonacci : remainders)(count);
	taken = now() - begun;
	printf("MODES user %s %lu %llu %lu\n", argument[1], count, taken, result);
	return 0;
}
