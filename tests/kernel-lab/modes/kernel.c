/* Does the work while it is loaded, and says what that took. */
#include <linux/ktime.h>
#include <linux/module.h>

unsigned long fibonacci(unsigned long n);
unsigned long remainders(unsigned long count);

static char *work = "";
static unsigned long count;
module_param(work, charp, 0);
module_param(count, ulong, 0);

static int __init begin(void)
{
	u64 begun = ktime_get_ns();
	unsigned long result = (work[0] == 'f' ? fibonacci : remainders)(count);
	u64 taken = ktime_get_ns() - begun;

	/* Critical, so that it reaches the console. */
	pr_crit("MODES kernel %s %lu %llu %lu\n", work, count, taken, result);
	return 0;
}

static void __exit end(void)
{
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("work in kernel mode, counted");
