# A data frame put in order, sums by group, and a product of matrices.
set.seed(42)
n <- 3000000
frame <- data.frame(group = sample(1000, n, TRUE), x = runif(n), y = rnorm(n))
frame <- frame[order(frame$y), ]
print(colSums(aggregate(cbind(x, y) ~ group, frame, sum)), digits = 12)
m <- matrix(rnorm(4e6), 2000)
print(sum(abs(crossprod(m))), digits = 10)
