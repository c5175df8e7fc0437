// built with a sanitizer
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    volatile char *p = malloc(1 << 20);
    p[5] = 1;
    printf("right %d\n", p[5]);
    free((void *)p);
    return 0;
}
