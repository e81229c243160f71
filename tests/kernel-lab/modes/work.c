/* What the appendix of the papers of 2004 lets both modes do. One object file serves both, so they run the same instructions. */

#define SAME_CODE __attribute__((__noinline__, __no_instrument_function__, __function_return__("keep")))

SAME_CODE unsigned long fibonacci(unsigned long n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

SAME_CODE unsigned long remainders(unsigned long count)
{
	unsigned long value = 1, divisor = 1000003;

	/* The compiler shall not know it: it would multiply instead. */
	__asm__ volatile("" : "+r"(divisor));
	while (count--)
		value = (value * 31 + 7) % divisor;
	return value;
}
